#include "common/base/bit_rate.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psring {
namespace {

constexpr std::pair<const char*, double> kUnits[] = {
    {"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}};
constexpr double kLeast = 1e3, kMost = 1e14;

}  // namespace

absl::StatusOr<double> ParseBitRate(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit = absl::AsciiStrToLower(text.substr(digits));
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a rate; write a number and its unit, such as 1gbit or 200mbit"));
  }
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const double rate = number * factor;
    if (rate >= kLeast && rate <= kMost) return rate;
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not between 1kbit and 100tbit"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' ", unit.empty() ? "has no unit" : "has an unknown unit", "; write 1gbit or 200mbit"));
}

std::string BitRateText(double bits_per_s) {
  for (const auto& [unit, name] : {std::pair(1e12, "Tbit/s"), {1e9, "Gbit/s"}, {1e6, "Mbit/s"}}) {
    if (bits_per_s >= unit) return absl::StrFormat("%g %s", bits_per_s / unit, name);
  }
  return absl::StrFormat("%g kbit/s", bits_per_s / 1e3);
}

}  // namespace psring
