// Checks the Chinese catalog against the texts in the sources.
#include "common/text/translate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/cli/command_line.h"
#include "common/text/suggestions.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The string literals of `source` and the text before each. Adjacent literals are joined.
struct Literal {
  std::string text, before;
};
std::vector<Literal> LiteralsOf(const std::string& source, char quote = '"') {
  std::vector<Literal> literals;
  std::string between;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) {
      while (i < source.size() && source[i] != '\n') ++i;
      continue;
    }
    if (quote == '"' && (source.compare(i, 3, "'\"'") == 0 || source.compare(i, 4, "'\\\"'") == 0)) {
      i += source[i + 1] == '\\' ? 3 : 2;  // a character, not a literal's begin
      continue;
    }
    if (source[i] != quote) {
      if (std::isspace(static_cast<unsigned char>(source[i])) == 0) between += source[i];
      continue;
    }
    std::string text;
    for (++i; i < source.size() && source[i] != quote; ++i) {
      if (source[i] == '\\' && source[i + 1] != 'n') ++i;
      text += source[i];
    }
    if (between.empty() && !literals.empty()) {
      literals.back().text += text;
    } else {
      literals.push_back({text, between});
    }
    between.clear();
  }
  return literals;
}

struct Entry {
  std::string context, english, chinese;
};
std::vector<Entry> Catalog() {
  std::vector<Entry> entries;
  Entry entry;
  for (const Literal& literal : LiteralsOf(Read(PSRING_SOURCE_DIR "/common/text/zh_CN.po"))) {
    if (absl::EndsWith(literal.before, "msgctxt")) entry.context = literal.text;
    if (absl::EndsWith(literal.before, "msgid")) entry.english = literal.text;
    if (literal.before != "msgstr") continue;
    entry.chinese = literal.text;
    if (!entry.english.empty()) entries.push_back(entry);  // else: the header
    entry = {};
  }
  return entries;
}

// The programs' sources, without the tests.
std::vector<fs::path> Sources() {
  std::vector<fs::path> sources;
  for (const char* folder : {"common", "experiments", "ps_server", "ring_worker", "trainer"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(PSRING_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension();
      if (extension == ".cc" || extension == ".h" || extension == ".cu") sources.push_back(entry.path());
    }
  }
  return sources;
}

// The texts of the page by key.
std::map<std::string, std::string> PageTexts() {
  std::map<std::string, std::string> texts;
  for (const auto& entry : fs::directory_iterator(PSRING_SOURCE_DIR "/experiments/page/web")) {
    if (!absl::StartsWith(entry.path().filename().string(), "texts")) continue;
    for (const Literal& literal : LiteralsOf(Read(entry.path()), '\'')) {
      if (!absl::EndsWith(literal.before, ":")) continue;
      const size_t from = literal.before.find_last_of(",{") + 1;
      const std::string key = literal.before.substr(from, literal.before.size() - 1 - from);
      if (!key.empty()) texts[key] = literal.text;
    }
  }
  return texts;
}

// "$0", "{0}", "{unit}".
std::set<std::string> Placeholders(const std::string& text) {
  std::set<std::string> found;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '$') found.insert(text.substr(i, 2));
    if (text[i] == '{') found.insert(text.substr(i, text.find('}', i) + 1 - i));
  }
  return found;
}

bool HoldsChinese(const std::string& text) {
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead >= 0xe4 && lead <= 0xe9) return true;  // U+4000 to U+9FFF
  }
  return false;
}

int Words(const std::string& text) {
  int words = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool letter = std::islower(static_cast<unsigned char>(text[i])) != 0;
    words += letter && (i == 0 || text[i - 1] == ' ') ? 1 : 0;
  }
  return words;
}

TEST(Catalog, TranslatesEveryTextOfTheSources) {
  std::set<std::string> translated, literals;
  for (const Entry& entry : Catalog()) {
    if (!entry.context.empty()) continue;
    EXPECT_TRUE(translated.insert(entry.english).second) << entry.english;
  }
  int texts = 0;
  for (const fs::path& path : Sources()) {
    for (const Literal& literal : LiteralsOf(Read(path))) {
      literals.insert(literal.text);
      if (!absl::EndsWith(literal.before, "Tr(") && !absl::EndsWith(literal.before, "TrNoop(")) continue;
      ++texts;
      EXPECT_TRUE(literal.text.empty() || translated.contains(literal.text)) << path << ": " << literal.text;
    }
  }
  EXPECT_GT(texts, 700);
  const std::set<std::string> of_the_system = {"No such file or directory", "Permission denied"};
  for (const std::string& text : translated)
    EXPECT_TRUE(literals.contains(text) || of_the_system.contains(text)) << "no longer used: " << text;
}

TEST(Catalog, TranslatesEveryTextOfThePage) {
  std::map<std::string, std::string> translated;
  for (const Entry& entry : Catalog()) {
    absl::string_view key = entry.context;
    if (absl::ConsumePrefix(&key, "page.")) translated[std::string(key)] = entry.english;
  }
  EXPECT_GT(translated.size(), 400u);
  EXPECT_EQ(translated, PageTexts());
}

TEST(Catalog, UsesThePlaceholdersOfTheEnglishText) {
  for (const Entry& entry : Catalog()) {
    SCOPED_TRACE(entry.english);
    for (const std::string& placeholder : Placeholders(entry.chinese))  // only English has plurals
      EXPECT_TRUE(Placeholders(entry.english).contains(placeholder)) << placeholder;
    if (entry.context == "page.other_language") continue;
    EXPECT_FALSE(HoldsChinese(entry.english));
    EXPECT_TRUE(Words(entry.english) <= 3 || HoldsChinese(entry.chinese)) << entry.chinese;
  }
}

TEST(Catalog, EntriesNeedNoEmptyLineBetweenThem) {
  EXPECT_EQ(
      ParseCatalog("msgid \"\"\nmsgstr \"header\"\n# of a count\nmsgid \"a\"\nmsgstr \"1\"\nmsgctxt "
                   "\"c\"\nmsgid \"a\"\nmsgstr \"\"\n\"2\"\n\"\\n\"\nmsgid \"\"\n\"b\"\nmsgstr \"3\"\nmsgid "
                   "\"untranslated\"\nmsgstr \"\""),
      (TextCatalog{{"a", "1"}, {"c\4a", "2\n"}, {"b", "3"}}));
}

TEST(Catalog, IsTheOnlyPlaceWithChinese) {
  for (const fs::path& path : Sources()) EXPECT_FALSE(HoldsChinese(Read(path))) << path;
}

TEST(Tr, TranslatesAndFillsIn) {
  EXPECT_EQ(Tr("$0 of $1 machines; other programs disturbed the others", 2, "3"),
            "2 of 3 machines; other programs disturbed the others");
  const ScopedLanguage chinese(Language::kChinese);
  EXPECT_EQ(Tr("$0 rounds", 2), "2 轮");
  EXPECT_EQ(Tr("not in the catalog: $0", 2), "not in the catalog: 2");
  EXPECT_EQ(ChineseByContext("page.").at("table"), "表格");
  EXPECT_STREQ(SentenceGap(), "");
  {
    const ScopedLanguage english(Language::kEnglish);
    EXPECT_EQ(Tr("$0 rounds", 2), "2 rounds");
    std::thread([] { EXPECT_EQ(Tr("$0 rounds", 2), "2 rounds") << "not another thread's"; }).join();
  }
  EXPECT_EQ(Tr("$0 rounds", 2), "2 轮");
}

TEST(Tr, ReachesErrorsWhereTheyOccur) {
  const ScopedLanguage chinese(Language::kChinese);
  EXPECT_EQ(WholeNumber(1, 9)("abc"), "'abc' 不是数");
  EXPECT_EQ(UnknownName("strategy", "rign", std::vector<std::string>{"single", "ring"}).message(),
            "没有名为 'rign' 的策略；是否指 'ring'？可用：single, ring");
}

TEST(Language, IsThatOfTheLocaleUnlessAProgramPassedOnItsOwn) {
  const auto with = [](const std::map<std::string, const char*>& variables) {
    return LanguageOf([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second;
    });
  };
  EXPECT_EQ(with({}), Language::kEnglish);
  EXPECT_EQ(with({{"LANG", "zh_CN.UTF-8"}}), Language::kChinese);
  EXPECT_EQ(with({{"LANG", "zh_CN.UTF-8"}, {"LC_ALL", ""}, {"LC_MESSAGES", "zh_TW"}}), Language::kChinese);
  EXPECT_EQ(with({{"LANG", "zh_CN.UTF-8"}, {"LC_ALL", "C"}}), Language::kEnglish);
  EXPECT_EQ(with({{"LC_ALL", "C"}, {kLanguageVariable, "zh"}}), Language::kChinese);
}

}  // namespace
}  // namespace psring
