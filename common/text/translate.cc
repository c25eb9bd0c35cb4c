#include "common/text/translate.h"

#include <atomic>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/text/catalogs.h"

namespace psring {
namespace {

// As in gettext's compiled catalogs: the key of an entry with a context.
std::string Key(absl::string_view context, absl::string_view english) {
  return context.empty() ? std::string(english) : absl::StrCat(context, "\4", english);
}

const TextCatalog& Chinese() {
  static const auto& catalog = *new TextCatalog(ParseCatalog(kChineseCatalog));
  return catalog;
}

std::atomic<Language>& LanguageOfProcess() {
  static std::atomic<Language> language = LanguageOf(std::getenv);
  return language;
}

thread_local const Language* scoped = nullptr;

}  // namespace

TextCatalog ParseCatalog(absl::string_view po) {
  TextCatalog catalog;
  std::string context, english, translation;
  std::string* part = &context;
  const auto end_entry = [&] {
    if (!english.empty() && !translation.empty()) catalog[Key(context, english)] = translation;
    context = english = translation = "";
  };
  for (absl::string_view line : absl::StrSplit(po, '\n')) {
    if (absl::ConsumePrefix(&line, "msgctxt ")) {
      end_entry();
      part = &context;
    } else if (absl::ConsumePrefix(&line, "msgid ")) {
      if (part == &translation) end_entry();
      part = &english;
    } else if (absl::ConsumePrefix(&line, "msgstr ")) {
      part = &translation;
    }
    std::string text;
    if (absl::ConsumePrefix(&line, "\"") && absl::ConsumeSuffix(&line, "\"") &&
        absl::CUnescape(line, &text)) {
      *part += text;
    }
  }
  end_entry();
  return catalog;
}

Language LanguageOf(const std::function<const char*(const char* name)>& environment) {
  for (const char* name : {kLanguageVariable, "LC_ALL", "LC_MESSAGES", "LANG"}) {
    const char* const value = environment(name);
    if (value == nullptr || *value == '\0') continue;
    return absl::StartsWith(value, "zh") ? Language::kChinese : Language::kEnglish;
  }
  return Language::kEnglish;
}

Language CurrentLanguage() { return scoped != nullptr ? *scoped : LanguageOfProcess().load(); }

void SetLanguage(Language language) {
  LanguageOfProcess() = language;
  setenv(kLanguageVariable, language == Language::kChinese ? "zh" : "en", /*overwrite=*/1);
}

ScopedLanguage::ScopedLanguage(Language language) : outer_(scoped), language_(language) {
  scoped = &language_;
}

ScopedLanguage::~ScopedLanguage() { scoped = outer_; }

absl::string_view Translation(absl::string_view english) {
  if (CurrentLanguage() == Language::kEnglish) return english;
  const auto entry = Chinese().find(english);
  return entry == Chinese().end() ? english : entry->second;
}

std::map<std::string, std::string> ChineseByContext(absl::string_view prefix) {
  std::map<std::string, std::string> texts;
  for (const auto& [key, translation] : Chinese()) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(key, '\4');
    absl::string_view rest = parts.first;
    if (!parts.second.empty() && absl::ConsumePrefix(&rest, prefix)) texts.emplace(rest, translation);
  }
  return texts;
}

}  // namespace psring
