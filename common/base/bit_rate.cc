#include "common/base/bit_rate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr double kLeast = 1e3, kMax = 1e14;

// The factor of "bit", "gbit", "Gbit/s", "Gbps", "Gb/s", "Gb", "G" or "GbE"; 0: not a unit of bits.
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
  if ((lower.empty() || lower == "be") && factor > 1) return factor;  // as iperf and Ethernet write them
  return absl::StartsWith(rest, "b") && (lower == "b" || lower == "bps" || lower == "b/s") ? factor : 0;
}

// The bits in a "GB/s", "MBps", "GiB" or "bytes/s"; 0: not a unit of bytes. An upper-case B is a byte.
double BitsOfBytes(const std::string& unit) {
  absl::string_view rest = unit;
  if (!absl::ConsumeSuffix(&rest, "/s")) absl::ConsumeSuffix(&rest, "ps");
  if (!absl::ConsumeSuffix(&rest, "Bytes") && !absl::ConsumeSuffix(&rest, "bytes") &&
      !absl::ConsumeSuffix(&rest, "B")) {
    return 0;
  }
  const bool binary = absl::ConsumeSuffix(&rest, "i");
  const double decimal = rest.empty() ? 1 : FactorOf(std::string(rest));
  return 8 * (binary ? std::exp2(10 * std::round(std::log10(decimal) / 3)) : decimal);
}

// "200mbit", which ParseBitRate reads back.
std::string ShortRate(double bits_per_s) {
  for (const auto& [unit, name] : {std::pair(1e12, "tbit"), {1e9, "gbit"}, {1e6, "mbit"}}) {
    if (bits_per_s >= unit) return absl::StrFormat("%g%s", bits_per_s / unit, name);
  }
  return absl::StrFormat("%gkbit", bits_per_s / 1e3);
}

}  // namespace

absl::StatusOr<double> ParseBitRate(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit(absl::StripAsciiWhitespace(text.substr(digits)));
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) {
    return absl::InvalidArgumentError(
        Tr("'$0' is not a rate; write a number and its unit, such as 1gbit or 200mbit", text));
  }
  if (unit.empty()) return absl::InvalidArgumentError(Tr("'$0' has no unit; write 1gbit or 200mbit", text));
  if (const double factor = FactorOf(unit); factor > 0) {
    const double rate = number * factor;
    if (rate >= kLeast && rate <= kMax) return rate;
    return absl::InvalidArgumentError(Tr("'$0' is not between 1kbit and 100tbit", text));
  }
  if (const double factor = BitsOfBytes(unit); factor > 0) {
    return absl::InvalidArgumentError(
        Tr("'$0' is in bytes, but a rate is in bits; write $1", text, ShortRate(number * factor)));
  }
  return absl::InvalidArgumentError(Tr("'$0' has an unknown unit; write 1gbit or 200mbit", text));
}

std::string BitRateText(double bits_per_s) {
  for (const auto& [unit, name] : {std::pair(1e12, "Tbit/s"), {1e9, "Gbit/s"}, {1e6, "Mbit/s"}}) {
    if (bits_per_s >= unit) return absl::StrFormat("%g %s", bits_per_s / unit, name);
  }
  return absl::StrFormat("%g kbit/s", bits_per_s / 1e3);
}

}  // namespace psring
