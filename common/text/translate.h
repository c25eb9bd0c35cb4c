// Texts for users. English stands where it is used, in Tr("..."); other languages are catalogs of GNU
// gettext's format (zh_CN.po), in which English is the key. They are compiled into the programs, so a program
// that was copied elsewhere, or that runs where no locale is installed, still has them; gettext itself would
// need a file and a locale at run time, and could not write two languages in one process, as runs and pages
// do.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/strings/substitute.h"

namespace psring {

enum class Language { kEnglish, kChinese };
// "en" or "zh", as for --lang.
inline Language LanguageNamed(absl::string_view name) {
  return name == "zh" ? Language::kChinese : Language::kEnglish;
}

// Passes the language on to the programs that a program starts: "en" or "zh".
inline constexpr char kLanguageVariable[] = "PSRING_LANG";

// Chinese if "zh" begins the value `environment` has for PSRING_LANG or else for the first that is set of
// LC_ALL, LC_MESSAGES and LANG.
Language LanguageOf(const std::function<const char*(const char* name)>& environment);

// Of the texts that this thread makes: that of its ScopedLanguage, else of SetLanguage, else of the
// environment.
Language CurrentLanguage();
// Of this process, and of those that it starts from now on. To be called before there are other threads.
void SetLanguage(Language language);

// While it exists, this thread's texts are in `language`: for files that exist in each language.
class ScopedLanguage {
 public:
  explicit ScopedLanguage(Language language);
  ~ScopedLanguage();
  ScopedLanguage(const ScopedLanguage&) = delete;
  ScopedLanguage& operator=(const ScopedLanguage&) = delete;

 private:
  const Language* const outer_;
  const Language language_;
};

// What `make` returns in `language`.
template <typename Make>
auto InLanguage(Language language, const Make& make) {
  const ScopedLanguage scope(language);
  return make();
}

// Translations by English text, or, of an entry with a context, by context and English with \4 between them.
using TextCatalog = std::map<std::string, std::string, std::less<>>;
// The translated entries of a catalog in gettext's format.
TextCatalog ParseCatalog(absl::string_view po);

// Marks a text in a table, which Tr(text) translates where it is used.
constexpr const char* TrNoop(const char* english) { return english; }

// `english` in the current language; itself if the catalog has no translation.
absl::string_view Translation(absl::string_view english);

// The translation, with `values` instead of $0, $1, ... (absl::Substitute).
template <typename... Values>
std::string Tr(absl::string_view english, const Values&... values) {
  return absl::Substitute(Translation(english), values...);
}

// InvalidArgument with the translation as its message.
template <typename... Values>
absl::Status InvalidTr(absl::string_view english, const Values&... values) {
  return absl::InvalidArgumentError(Tr(english, values...));
}

// What separates sentences: a space, in Chinese nothing.
inline const char* SentenceGap() { return CurrentLanguage() == Language::kChinese ? "" : " "; }

// The Chinese of all entries whose msgctxt begins with `prefix`, by the rest of the msgctxt.
std::map<std::string, std::string> ChineseByContext(absl::string_view prefix);

}  // namespace psring
