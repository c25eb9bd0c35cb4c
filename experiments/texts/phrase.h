// Bilingual texts for users. A phrase holds English and Chinese side by side; all phrases are in this folder.
// Text for scripts (file columns, nccl-tests' table) and error messages are English only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/substitute.h"

namespace psring {

enum class Language { kEnglish, kChinese };

// Parses "en" or "zh", the values that --lang accepts.
inline Language LanguageOf(const std::string& text) {
  return text == "zh" ? Language::kChinese : Language::kEnglish;
}

// $0, $1, ... are placeholders (absl::Substitute).
struct Phrase {
  const char* english;
  const char* chinese;
};

inline const char* In(Language language, const Phrase& phrase) {
  return language == Language::kChinese ? phrase.chinese : phrase.english;
}

template <typename... Values>
std::string Say(Language language, const Phrase& phrase, const Values&... values) {
  return absl::Substitute(In(language, phrase), values...);
}

inline constexpr Phrase kComma = {", ", "，"};
inline constexpr Phrase kSemicolon = {"; ", "；"};

template <typename List>
std::string Joined(Language language, const List& parts, const Phrase& separator = kComma) {
  return absl::StrJoin(parts, In(language, separator));
}

// Collects sentences in one language.
class Sentences {
 public:
  explicit Sentences(Language language) : language_(language) {}

  Language language() const { return language_; }
  template <typename... Values>
  std::string Say(const Phrase& phrase, const Values&... values) const {
    return psring::Say(language_, phrase, values...);
  }
  template <typename List>
  std::string Joined(const List& parts, const Phrase& separator = kComma) const {
    return psring::Joined(language_, parts, separator);
  }

  template <typename... Values>
  void Add(const Phrase& phrase, const Values&... values) {
    list_.push_back(Say(phrase, values...));
  }
  void AddText(std::string text) { list_.push_back(std::move(text)); }
  const std::vector<std::string>& list() const { return list_; }

 private:
  const Language language_;
  std::vector<std::string> list_;
};

}  // namespace psring
