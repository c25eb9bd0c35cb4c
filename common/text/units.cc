#include "common/text/units.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr double kLeastRate = 1e3, kMaxRate = 1e14;
constexpr std::pair<double, const char*> kDecimal[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};

// The factor of "bit", "gbit", "Gbit/s", "Gbps", "Gb/s", "Gb", "G" or "GbE"; 0: not a unit of bits.
double FactorOf(absl::string_view unit) {
  double factor = 1;
  for (const auto& [of_letter, letter] : kDecimal) {
    if (factor > 1 || !absl::StartsWithIgnoreCase(unit, letter)) continue;
    factor = of_letter;
    unit.remove_prefix(1);
  }
  const std::string lower = absl::AsciiStrToLower(unit);
  if (lower == "bit" || lower == "bits" || lower == "bit/s" || lower == "bits/s") return factor;
  if ((lower.empty() || lower == "be") && factor > 1) return factor;  // as iperf and Ethernet write them
  return absl::StartsWith(unit, "b") && (lower == "b" || lower == "bps" || lower == "b/s") ? factor : 0;
}

// The bits in a "GB/s", "MBps", "GiB" or "bytes/s"; 0: not a unit of bytes. An upper-case B is a byte.
double BitsOfBytes(absl::string_view unit) {
  if (!absl::ConsumeSuffix(&unit, "/s")) absl::ConsumeSuffix(&unit, "ps");
  if (!absl::ConsumeSuffix(&unit, "Bytes") && !absl::ConsumeSuffix(&unit, "bytes") &&
      !absl::ConsumeSuffix(&unit, "B")) {
    return 0;
  }
  const bool binary = absl::ConsumeSuffix(&unit, "i");
  const double decimal = unit.empty() ? 1 : FactorOf(unit);
  return 8 * (binary ? std::exp2(10 * std::round(std::log10(decimal) / 3)) : decimal);
}

// The rate in the largest unit that fits: 2.5 and "G".
std::pair<double, std::string> Scaled(double bits_per_s) {
  for (const auto& [unit, letter] : kDecimal) {
    if (bits_per_s >= unit) return {bits_per_s / unit, letter};
  }
  return {bits_per_s / 1e3, "k"};
}

// "200mbit", which ParseBitRate reads back.
std::string ShortRate(double bits_per_s) {
  const auto& [number, letter] = Scaled(bits_per_s);
  return absl::StrFormat("%g%sbit", number, absl::AsciiStrToLower(letter));
}

constexpr char kSuffixes[] = "KMGT";
constexpr double kMaxBytes = 1099511627776;  // 2^40

// 1 for K, 2 for M, ...; 0: not a suffix.
int SuffixAt(char letter) {
  return static_cast<int>(std::string(kSuffixes).find(absl::ascii_toupper(letter)) + 1);
}

struct Unit {
  const char* names;  // separated by commas
  double seconds;
};
constexpr Unit kUnits[] = {{"ns,nsec,nanosecond,nanoseconds", 1e-9},
                           {"us,usec,usecs,microsecond,microseconds,µs,μs", 1e-6},
                           {"ms,msec,msecs,millisecond,milliseconds", 1e-3},
                           {"s,sec,secs,second,seconds", 1},
                           {"m,min,mins,minute,minutes", 60},
                           {"h,hr,hrs,hour,hours", 3600},
                           {"d,day,days", 86400}};

std::optional<double> SecondsOf(absl::string_view name) {
  for (const Unit& unit : kUnits) {
    for (const absl::string_view known : absl::StrSplit(unit.names, ',')) {
      if (name == known) return unit.seconds;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<double> ParseBitRate(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit(absl::StripAsciiWhitespace(absl::string_view(text).substr(digits)));
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) {
    return InvalidTr("'$0' is not a rate; write a number and its unit, such as 1gbit or 200mbit", text);
  }
  if (unit.empty()) return InvalidTr("'$0' has no unit; write 1gbit or 200mbit", text);
  if (const double factor = FactorOf(unit); factor > 0) {
    const double rate = number * factor;
    if (rate >= kLeastRate && rate <= kMaxRate) return rate;
    return InvalidTr("'$0' is not between 1kbit and 100tbit", text);
  }
  if (const double factor = BitsOfBytes(unit); factor > 0) {
    return InvalidTr("'$0' is in bytes, but a rate is in bits; write $1", text, ShortRate(number * factor));
  }
  return InvalidTr("'$0' has an unknown unit; write 1gbit or 200mbit", text);
}

std::string BitRateText(double bits_per_s) {
  const auto& [number, letter] = Scaled(bits_per_s);
  return absl::StrFormat("%g %sbit/s", number, letter);
}

absl::StatusOr<uint64_t> ParseByteSize(const std::string& text) {
  const auto refused = [&text] {
    return InvalidTr("'$0' is not a size; write bytes, or a number with K, M or G", text);
  };
  std::string digits = text;
  if (digits.size() > 1 && absl::ascii_toupper(digits.back()) == 'B') digits.pop_back();
  const size_t before = digits.size() < 2 ? 0 : digits.size() - 2;
  if (absl::EndsWith(digits, "i") && SuffixAt(digits[before]) != 0) digits.pop_back();  // "KiB"
  double unit = 1;
  if (const int suffix = digits.empty() ? 0 : SuffixAt(digits.back()); suffix > 0) {
    unit = std::exp2(10.0 * suffix);
    digits.pop_back();
  }
  absl::StripTrailingAsciiWhitespace(&digits);
  // Plain decimals only: SimpleAtod would also take "inf", "1e3" and a sign.
  if (digits.empty() || digits.find_first_not_of("0123456789.") != std::string::npos) return refused();
  double number = 0;
  if (!absl::SimpleAtod(digits, &number)) return refused();
  const double bytes = number * unit;
  if (bytes != std::floor(bytes)) return InvalidTr("'$0' is not a whole number of bytes", text);
  if (bytes > kMaxBytes) return absl::InvalidArgumentError(absl::StrCat("'", text, "' is above 1024G"));
  return static_cast<uint64_t>(bytes);
}

std::string ByteSizeText(uint64_t bytes) {
  for (int suffix = 2; suffix >= 0; --suffix) {
    const uint64_t unit = uint64_t{1} << (10 * (suffix + 1));
    if (bytes < unit) continue;
    if (bytes % unit == 0) return absl::StrCat(bytes / unit, std::string(1, kSuffixes[suffix]));
    if (bytes % (unit / 2) == 0) return absl::StrCat(bytes / unit, ".5", std::string(1, kSuffixes[suffix]));
  }
  return absl::StrCat(bytes);
}

std::string Fixed(double value, int digits) { return absl::StrFormat("%.*f", digits, value); }

std::string ThreeDigits(double value) { return absl::StrFormat("%.3g", value); }

std::optional<absl::Duration> ParseDurationText(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  absl::string_view rest = absl::StripAsciiWhitespace(lower);
  absl::Duration sum = absl::ZeroDuration();
  if (rest.empty()) return std::nullopt;
  while (!rest.empty()) {
    const size_t digits = std::min(rest.find_first_not_of("0123456789."), rest.size());
    double number = 0;
    if (!absl::SimpleAtod(rest.substr(0, digits), &number)) return std::nullopt;
    rest = absl::StripLeadingAsciiWhitespace(rest.substr(digits));
    const size_t letters = std::min(rest.find_first_of("0123456789. "), rest.size());
    const std::optional<double> unit = SecondsOf(rest.substr(0, letters));
    if (!unit) return std::nullopt;
    sum += absl::Seconds(number * *unit);
    rest = absl::StripLeadingAsciiWhitespace(rest.substr(letters));
  }
  return sum;
}

}  // namespace psring
