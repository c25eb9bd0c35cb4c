// Checks the tables of phrases in their sources.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
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
