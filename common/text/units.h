// Rates, sizes and durations as users write them.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

// Bits per second: a plain decimal number and one of bit, kbit, mbit, gbit, tbit (decimal units, as in tc),
// from 1kbit to 100tbit. "25G", "25Gb", "25Gbps", "25Gb/s", "25 Gbit/s" and "25GbE" are "25gbit".
// InvalidArgument, in one line: the unit is missing or of bytes ("25GB/s"), or the number is out of range.
absl::StatusOr<double> ParseBitRate(const std::string& text);
// "1 Gbit/s", "2.5 Gbit/s", "200 Mbit/s".
std::string BitRateText(double bits_per_s);

// A whole number of bytes, at most 2^40, as nccl-tests writes it: "4096", "4K", "1.5M", "2G", binary;
// otherwise InvalidArgument. K, M and G may be lower-case and may be followed by B or iB: "4KB" and "4 KiB"
// are "4K".
absl::StatusOr<uint64_t> ParseByteSize(const std::string& text);
// "4K", "1.5M", "1000": the shortest text that ParseByteSize reads back as the same number.
std::string ByteSizeText(uint64_t bytes);

// "%.2f", or with another number of digits.
std::string Fixed(double value, int digits = 2);
// "%.3g".
std::string ThreeDigits(double value);

// The shortest text that reads back as the same number.
template <typename Number>
std::string ShortestText(Number value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

// A sequence of plain decimal numbers, each with a unit from ns to d: "10m", "10 min", "2 hours", "1h 30m".
// Empty: it is none, or a number without a unit.
std::optional<absl::Duration> ParseDurationText(const std::string& text);

}  // namespace psring
