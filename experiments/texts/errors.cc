#include "experiments/texts/errors.h"

#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/cli/command_line.h"
#include "experiments/texts/error_table.h"

namespace psring {
namespace {

constexpr Phrase kError = {"$0", "错误：$0"};
constexpr char kClause[] = "; ";

// The values of $0, $1, ... with which `pattern` is `text`; each is a part of one clause.
std::optional<std::vector<std::string>> Match(absl::string_view pattern, absl::string_view text) {
  std::vector<std::string> values;
  size_t dollar = pattern.find('$');
  const absl::string_view begin = pattern.substr(0, dollar);
  if (dollar == absl::string_view::npos) return text == pattern ? std::optional(values) : std::nullopt;
  if (!absl::StartsWith(text, begin)) return std::nullopt;
  text.remove_prefix(begin.size());
  while (dollar != absl::string_view::npos) {
    pattern.remove_prefix(dollar + 2);  // "$0"
    dollar = pattern.find('$');
    const absl::string_view next = pattern.substr(0, dollar);
    const bool last = dollar == absl::string_view::npos;
    if (last && !absl::EndsWith(text, next)) return std::nullopt;
    const size_t end = last ? text.size() - next.size() : text.find(next, 1);
    if (end == absl::string_view::npos || end == 0) return std::nullopt;
    values.emplace_back(text.substr(0, end));
    if (absl::StrContains(values.back(), kClause)) return std::nullopt;
    text.remove_prefix(end + next.size());
  }
  return values;
}

std::string Filled(absl::string_view pattern, const std::vector<std::string>& values) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '$') {
      text += values[static_cast<size_t>(pattern[++i] - '0')];
    } else {
      text += pattern[i];
    }
  }
  return text;
}

std::optional<std::string> Chinese(const std::string& text) {
  for (const Phrase& row : kErrors) {
    std::optional<std::vector<std::string>> values = Match(row.english, text);
    if (!values) continue;
    for (std::string& value : *values) value = Chinese(value).value_or(value);
    return Filled(row.chinese, *values);
  }
  if (const size_t at = text.find(kClause); at != std::string::npos) {
    const std::optional<std::string> first = Chinese(text.substr(0, at)), rest = Chinese(text.substr(at + 2));
    if (!first || !rest) return std::nullopt;
    return absl::StrCat(*first, kSemicolon.chinese, *rest);
  }
  const size_t colon = text.find(": ");
  if (colon == std::string::npos) return std::nullopt;
  const std::string where = text.substr(0, colon);
  if (absl::StrContains(where, " ") && !absl::StartsWith(where, "--")) return std::nullopt;
  const std::optional<std::string> rest = Chinese(text.substr(colon + 2));
  return rest ? std::optional(absl::StrCat(where, ": ", *rest)) : std::nullopt;
}

}  // namespace

std::string InLanguage(Language language, const std::string& english) {
  if (language == Language::kEnglish) return english;
  const size_t line = english.find('\n');
  const std::optional<std::string> chinese = Chinese(english.substr(0, line));
  if (!chinese) return english;
  return absl::StrCat(*chinese, line == std::string::npos ? "" : english.substr(line));
}

std::string ErrorText(Language language, const std::string& english) {
  return Say(language, kError, InLanguage(language, english));
}

int Fail(Language language, const std::string& program, const std::string& message, int code) {
  return Fail(program, ErrorText(language, message), code);
}

}  // namespace psring
