// The part of command_line.h that handles single words: nearest names, numbers in range.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/cli/command_line.h"

namespace psring {
namespace {

// Optimal string alignment: insertions, deletions, replacements and swaps of adjacent characters count 1.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string CanonicalWord(std::string word) {
  absl::AsciiStrToLower(&word);
  std::replace(word.begin(), word.end(), '-', '_');
  return word;
}

std::string NearestWord(const std::string& word, const std::vector<std::string>& known) {
  const std::string typed = CanonicalWord(word);
  if (typed.size() >= 3) {
    for (const std::string& candidate : known) {
      if (absl::StartsWith(CanonicalWord(candidate), typed)) return candidate;
    }
  }
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(typed, CanonicalWord(candidate));
    if (3 * distance <= std::max(typed.size(), candidate.size()) && distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string MeantByOtherName(const std::string& word, const std::vector<std::string>& known,
                             const std::vector<std::string>& others) {
  for (size_t i = 0; i < known.size(); ++i) {
    for (absl::string_view other : absl::StrSplit(others[i], ',', absl::SkipEmpty())) {
      if (CanonicalWord(std::string(other)) == CanonicalWord(word)) return known[i];
    }
  }
  return "";
}

ValueCheck WholeNumber(int64_t least, uint64_t most) {
  return [least, most](const std::string& text) -> std::string {
    double value;
    if (!absl::SimpleAtod(text, &value) || std::isnan(value)) {
      return absl::StrCat("'", text, "' is not a number");
    }
    absl::int128 whole = 0;
    if (!absl::SimpleAtoi(text, &whole)) {  // a fraction, or more digits than fit
      if (value > -0x1p63 && value < 0x1p64) return absl::StrCat("'", text, "' is not a whole number");
      whole = value > 0 ? absl::Int128Max() : absl::Int128Min();
    }
    if (whole < least) return absl::StrCat(text, " is too small; the least is ", least);
    if (whole > most) return absl::StrCat(text, " is too large; the most is ", most);
    return "";
  };
}

ValueCheck RealNumber(const RealRange& range) {
  return [range](const std::string& text) -> std::string {
    double value;
    if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
      return absl::StrCat("'", text, "' is not a number");
    }
    if (value < range.low || (value == range.low && !range.low_allowed)) {
      return absl::StrCat(text, " is too small; it must be ", range.low_allowed ? "at least " : "above ",
                          range.low);
    }
    if (value > range.high || (value == range.high && !range.high_allowed)) {
      return absl::StrCat(text, " is too large; it must be ", range.high_allowed ? "at most " : "below ",
                          range.high);
    }
    return "";
  };
}

ValueCheck OneOf(const std::vector<std::string>& words) {
  return [words](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    const std::string nearest = NearestWord(text, words);
    return absl::StrCat("'", text, "' is not one of ", absl::StrJoin(words, ", "),
                        nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
  };
}

ValueCheck ListOf(ValueCheck check) {
  return [check = std::move(check)](const std::string& text) {
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      if (std::string wrong = check(std::string(part)); !wrong.empty()) return wrong;
    }
    return std::string();
  };
}

absl::StatusOr<std::vector<int>> ParseCounts(const std::string& text, int most) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "': ", why));
  };
  constexpr char kDots[] = "... needs two numbers before it and the last number after it, as in 2,4,...,64";
  std::vector<int> list;
  bool dots = false;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part == "...") {
      if (list.size() < 2 || dots) return wrong(kDots);
      dots = true;
      continue;
    }
    const std::string bad = WholeNumber(1, static_cast<uint64_t>(most))(std::string(part));
    int number = 0;
    if (!bad.empty() || !absl::SimpleAtoi(part, &number)) return absl::InvalidArgumentError(bad);
    if (!dots) {
      list.push_back(number);
      continue;
    }
    dots = false;
    const int64_t last = list.back(), before = list[list.size() - 2];
    const int64_t factor = last > before && last % before == 0 ? last / before : 1, step = last - before;
    int64_t reached = last;
    while (factor > 1 && reached < number) reached *= factor;
    if (factor > 1 && reached == number) {
      for (int64_t next = last; next < number;) list.push_back(static_cast<int>(next *= factor));
      continue;
    }
    if (step <= 0 || number < last || (number - last) % step != 0) {
      return wrong(absl::StrCat("\"", before, ",", last, ",...,", number,
                                "\" is neither a geometric nor an arithmetic sequence"));
    }
    if ((number - last) / step > 10'000) return wrong("the sequence has more than 10000 numbers");
    for (int64_t next = last; next < number;) list.push_back(static_cast<int>(next += step));
  }
  if (dots) return wrong(kDots);
  return list;
}

ValueCheck CountsText(int most) {
  return [most](const std::string& text) { return std::string(ParseCounts(text, most).status().message()); };
}

}  // namespace psring
