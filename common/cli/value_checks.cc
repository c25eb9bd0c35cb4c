// The checks of command_line.h: numbers in range, one of several words, lists.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "common/text/units.h"

namespace psring {
namespace {

bool IsThreeDigits(const std::string& part) {
  return part.size() == 3 && part.find_first_not_of("0123456789") == std::string::npos;
}

// The unit of a flag whose values are plain numbers.
struct FlagUnit {
  const char* name;
  std::optional<double> (*parse)(const std::string& text);
};

std::optional<FlagUnit> UnitOf(const std::string& flag, const std::string& unit) {
  if (unit == "S") {
    return FlagUnit{"seconds", [](const std::string& text) -> std::optional<double> {
                      const std::optional<absl::Duration> time = ParseDurationText(text);
                      return time ? std::optional(absl::ToDoubleSeconds(*time)) : std::nullopt;
                    }};
  }
  if (unit == "MIB" || absl::EndsWith(flag, "_mb")) {
    return FlagUnit{"MiB", [](const std::string& text) -> std::optional<double> {
                      const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
                      return bytes.ok() ? std::optional(std::ldexp(static_cast<double>(*bytes), -20))
                                        : std::nullopt;
                    }};
  }
  return std::nullopt;
}

// "4k", "2M", "1e3" as a count.
std::optional<double> CountOf(const std::string& text) {
  double number = 0;
  if (absl::SimpleAtod(text, &number)) return number;
  const size_t suffix = std::string("kmg").find(absl::ascii_tolower(text.back()));
  if (suffix == std::string::npos || !absl::SimpleAtod(text.substr(0, text.size() - 1), &number))
    return std::nullopt;
  return number * std::pow(1000.0, static_cast<double>(suffix) + 1);
}

}  // namespace

ValueCheck WholeNumber(int64_t least, uint64_t most) {
  return [least, most](const std::string& text) -> std::string {
    double value;
    if (!absl::SimpleAtod(text, &value) || std::isnan(value)) return Tr("'$0' is not a number", text);
    absl::int128 whole = 0;
    if (!absl::SimpleAtoi(text, &whole)) {  // a fraction, or more digits than fit
      if (value > -0x1p63 && value < 0x1p64) return Tr("'$0' is not a whole number", text);
      whole = value > 0 ? absl::Int128Max() : absl::Int128Min();
    }
    if (whole < least) return Tr("$0 is too small; the least is $1", text, least);
    if (whole > most) return Tr("$0 is too large; the most is $1", text, most);
    return "";
  };
}

ValueCheck RealNumber(const RealRange& range) {
  return [range](const std::string& text) -> std::string {
    double value;
    if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return Tr("'$0' is not a number", text);
    if (value < range.low || (value == range.low && !range.low_allowed)) {
      return Tr(range.low_allowed ? TrNoop("$0 is too small; it must be at least $1")
                                  : TrNoop("$0 is too small; it must be above $1"),
                text, range.low);
    }
    if (value > range.high || (value == range.high && !range.high_allowed)) {
      return Tr(range.high_allowed ? TrNoop("$0 is too large; it must be at most $1")
                                   : TrNoop("$0 is too large; it must be below $1"),
                text, range.high);
    }
    return "";
  };
}

ValueCheck OneOf(const std::vector<std::string>& words) {
  return [words](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    const std::string nearest = NearestWord(text, words);
    return Tr("'$0' is not one of $1$2", text, absl::StrJoin(words, ", "),
              nearest.empty() ? "" : Tr("; did you mean $0?", nearest));
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

std::string WhyNotOneValue(const std::string& flag, const std::string& value, const std::string& unit,
                           const ValueCheck& check) {
  const std::vector<std::string> parts = absl::StrSplit(value, ',');
  if (parts.size() > 1) {
    const std::string joined = absl::StrJoin(parts, ""), decimal = absl::StrJoin(parts, ".");
    const bool is_number = absl::ascii_isdigit(value.front());
    const bool thousands =
        is_number && parts.front().size() <= 3 && std::all_of(parts.begin() + 1, parts.end(), IsThreeDigits);
    if (thousands && check(joined).empty()) return Tr("'$0' has separators; write $1", value, joined);
    const bool is_decimal = is_number && check(decimal).empty();
    const bool is_list =
        std::all_of(parts.begin(), parts.end(), [&](const std::string& part) { return check(part).empty(); });
    if (is_list) {
      const std::string for_each = Tr("run the command once for each");
      return Tr("'$0' is a list, but $1 takes one value; $2", value, flag,
                is_decimal ? Tr("write $0, or $1", decimal, for_each) : for_each);
    }
    return is_decimal ? Tr("'$0' has a decimal comma; write $1", value, decimal) : "";
  }
  const size_t digits = std::min(value.find_first_not_of("0123456789."), value.size());
  if (digits == 0 || digits == value.size()) return "";
  const std::optional<FlagUnit> in = UnitOf(flag, unit);
  const std::optional<double> number = in ? in->parse(value) : CountOf(value);
  const std::string instead = number ? absl::StrFormat("%.15g", *number) : "";
  if (instead.empty() || absl::StrContains(instead, "e") || !check(instead).empty()) return "";
  return in ? Tr("'$0' has a unit, but $1 is in $2; write $3", value, flag, in->name, instead)
            : Tr("'$0' is not a number; write $1", value, instead);
}

absl::StatusOr<std::vector<int>> ParseCounts(const std::string& text, int most) {
  const auto wrong = [&](const std::string& why) { return InvalidArgument("'", text, "': ", why); };
  constexpr const char* kDots =
      TrNoop("... needs two numbers before it and the last number after it, as in 2,4,...,64");
  std::vector<int> list;
  bool dots = false;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part == "...") {
      if (list.size() < 2 || dots) return wrong(Tr(kDots));
      dots = true;
      continue;
    }
    const std::string bad = WholeNumber(1, static_cast<uint64_t>(most))(std::string(part));
    int number = 0;
    if (!bad.empty() || !absl::SimpleAtoi(part, &number)) return InvalidArgument(bad);
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
      return wrong(
          Tr("\"$0,$1,...,$2\" is neither a geometric nor an arithmetic sequence", before, last, number));
    }
    if ((number - last) / step > 10'000) return wrong("the sequence has more than 10000 numbers");
    for (int64_t next = last; next < number;) list.push_back(static_cast<int>(next += step));
  }
  if (dots) return wrong(Tr(kDots));
  return list;
}

ValueCheck CountsText(int most) {
  return [most](const std::string& text) { return std::string(ParseCounts(text, most).status().message()); };
}

}  // namespace psring
