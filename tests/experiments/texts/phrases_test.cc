// Checks the tables of phrases in their sources.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "experiments/texts/error_table.h"
#include "experiments/texts/errors.h"
#include "experiments/texts/phrase.h"
#include "tests/experiments/slurp.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// The string literals of `source` and the text between them. Adjacent literals are joined.
struct Literal {
  std::string text, before;
};
std::vector<Literal> LiteralsOf(const std::string& source) {
  std::vector<Literal> literals;
  std::string between;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) {
      while (i < source.size() && source[i] != '\n') ++i;
      continue;
    }
    if (source[i] != '"') {
      if (std::isspace(static_cast<unsigned char>(source[i])) == 0) between += source[i];
      continue;
    }
    std::string text;
    for (++i; i < source.size() && source[i] != '"'; ++i) {
      if (source[i] == '\\') ++i;
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

std::set<char> Placeholders(const std::string& text) {
  std::set<char> found;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '$') found.insert(text[i + 1]);
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

TEST(Phrases, UseTheSamePlaceholdersInBothLanguages) {
  int pairs = 0;
  for (const auto& entry : fs::directory_iterator(PSRING_EXPERIMENTS "/texts")) {
    if (entry.path().extension() != ".h") continue;
    const std::vector<Literal> literals = LiteralsOf(Slurp(entry.path()));
    for (size_t i = 1; i < literals.size(); ++i) {
      const Literal &english = literals[i - 1], &chinese = literals[i];
      if (!absl::EndsWith(english.before, "{") || chinese.before != ",") continue;
      SCOPED_TRACE(entry.path().filename().string() + ": " + english.text);
      ++pairs;
      EXPECT_FALSE(HoldsChinese(english.text));
      for (const char placeholder : Placeholders(chinese.text))  // only English has plurals
        EXPECT_TRUE(Placeholders(english.text).contains(placeholder)) << "$" << placeholder;
      EXPECT_TRUE(Words(english.text) <= 3 || HoldsChinese(chinese.text)) << chinese.text;
    }
  }
  EXPECT_GT(pairs, 150);
}

// All string literals of the programs' sources, without the tests.
std::string AllLiterals() {
  std::string all;
  for (const char* folder : {"common", "experiments", "ps_server", "ring_worker", "trainer"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(PSRING_EXPERIMENTS) / ".." / folder)) {
      const std::string name = entry.path().filename().string();
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
      if (name == "error_table.h") continue;
      for (const Literal& literal : LiteralsOf(Slurp(entry.path())))
        absl::StrAppend(&all, literal.text, "\n");
    }
  }
  return all;
}

TEST(Errors, EveryTranslatedTextOccursInTheSources) {
  // Put together from parts, or of CLI11 and the system.
  const std::set<std::string> others = {" is required",
                                        " excludes ",
                                        " rounds",
                                        "the results are those of 1 round",
                                        " has no result of ranks ",
                                        "it must be at most ",
                                        " (256 with --clock virtual), not ",
                                        "there is no mpirun on this machine's PATH",
                                        "No such file or directory",
                                        "Permission denied"};
  const std::string all = absl::StrReplaceAll(AllLiterals(), {{"%d", ""}, {"%s", ""}, {"%.1f", ""}});
  for (const Phrase& row : kErrors) {
    std::string text = row.english;
    for (int i = 0; i < 10; ++i)
      text = absl::StrReplaceAll(text, {{absl::StrCat("$", i), "\n"}, {"; ", "\n"}});
    for (absl::string_view part : absl::StrSplit(text, '\n')) {
      if (others.contains(std::string(part))) continue;
      EXPECT_TRUE(absl::StrContains(all, part)) << "'" << part << "' of: " << row.english;
    }
  }
}

TEST(Errors, AreTranslatedAsAWholeOrByClause) {
  const auto chinese = [](const std::string& english) { return InLanguage(Language::kChinese, english); };
  EXPECT_EQ(chinese("--lr: 'abc' is not a number"), "--lr: 'abc' 不是数");
  EXPECT_EQ(chinese("unknown strategy 'rign'; did you mean 'ring'? Use one of single, ring"),
            "没有名为 'rign' 的策略；是否指 'ring'？可用：single, ring");
  EXPECT_EQ(chinese("--workers must be from 1 to 64 (256 with --clock virtual), not 65"),
            "--workers 必须从 1 到 64（--clock virtual 时到 256），而不是 65");
  EXPECT_EQ(chinese("cannot read a b.json: there is no such file\nlog"),
            "不能读 a b.json：没有这个文件\nlog");
  const std::string unknown = "--lr: something new happened; omit it";
  EXPECT_EQ(chinese(unknown), unknown) << "not half of it";
  EXPECT_EQ(chinese(""), "");
  EXPECT_EQ(InLanguage(Language::kEnglish, "omit it"), "omit it");
  EXPECT_EQ(ErrorText(Language::kChinese, unknown), "错误：" + unknown);
}

TEST(Phrases, NoOtherSourceContainsChinese) {
  for (const auto& entry : fs::recursive_directory_iterator(PSRING_EXPERIMENTS)) {
    const std::string extension = entry.path().extension();
    if (extension != ".cc" && extension != ".h") continue;
    if (entry.path().parent_path().filename() == "texts") continue;
    EXPECT_FALSE(HoldsChinese(Slurp(entry.path()))) << entry.path();
  }
}

TEST(Phrases, AreFilledInAndJoinedByLanguage) {
  constexpr Phrase kPair = {"$0 of $1", "$1 中的 $0"};
  EXPECT_EQ(Say(Language::kEnglish, kPair, 2, "3"), "2 of 3");
  EXPECT_EQ(Say(Language::kChinese, kPair, 2, "3"), "3 中的 2");
  Sentences sentences(Language::kChinese);
  sentences.Add(kPair, 1, 2);
  EXPECT_EQ(sentences.list(), std::vector<std::string>{"2 中的 1"});
  EXPECT_EQ(sentences.Joined(std::vector<int>{1, 2}), "1，2");
  EXPECT_EQ(LanguageOf("zh"), Language::kChinese);
}

}  // namespace
}  // namespace psring
