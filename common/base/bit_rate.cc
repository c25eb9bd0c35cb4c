#include "common/base/bit_rate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psring {
namespace {

constexpr double kLeast = 1e3, kMost = 1e14;
constexpr char kExample[] = "; write 1gbit or 200mbit";

// The factor of "bit", "gbit", "Gbit/s", "Gbps", "Gb/s" or "GbE"; 0: not a unit of bits.
double FactorOf(const std::string& unit) {
  absl::string_view rest = unit;
  double factor = 1;
  for (const auto& [letter, of_letter] : {std::pair('k', 1e3), {'m', 1e6}, {'g', 1e9}, {'t', 1e12}}) {
    if (factor > 1 || rest.empty() || absl::ascii_tolower(static_cast<unsigned char>(rest[0])) != letter)
      continue;
    factor = of_letter;
    rest.remove_prefix(1);
  }
  const std::string lower = absl::AsciiStrToLower(rest);
  if (lower == "bit" || lower == "bits" || lower == "bit/s" || lower == "bits/s") return factor;
  if (lower == "be" && factor > 1) return factor;  // Ethernet's speeds
  return absl::StartsWith(rest, "b") && (lower == "bps" || lower == "b/s") ? factor : 0;
}

// "GB/s", "MBps", "GiB/s": an upper-case B is a byte.
bool IsInBytes(absl::string_view unit) {
  return absl::EndsWithIgnoreCase(unit, "bytes/s") ||
         (absl::StrContains(unit, "B") &&
          (absl::EndsWithIgnoreCase(unit, "ps") || absl::EndsWith(unit, "/s")));
}

}  // namespace

absl::StatusOr<double> ParseBitRate(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit = text.substr(digits);
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a rate; write a number and its unit, such as 1gbit or 200mbit"));
  }
  if (unit.empty()) return absl::InvalidArgumentError(absl::StrCat("'", text, "' has no unit", kExample));
  if (const double factor = FactorOf(unit); factor > 0) {
    const double rate = number * factor;
    if (rate >= kLeast && rate <= kMost) return rate;
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not between 1kbit and 100tbit"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' ",
                   IsInBytes(unit) ? "is in bytes, but a rate is in bits" : "has an unknown unit", kExample));
}

std::string BitRateText(double bits_per_s) {
  for (const auto& [unit, name] : {std::pair(1e12, "Tbit/s"), {1e9, "Gbit/s"}, {1e6, "Mbit/s"}}) {
    if (bits_per_s >= unit) return absl::StrFormat("%g %s", bits_per_s / unit, name);
  }
  return absl::StrFormat("%g kbit/s", bits_per_s / 1e3);
}

}  // namespace psring
