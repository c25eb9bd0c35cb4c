// Link rates as users write them: "1gbit", "200mbit", "2.5gbit".
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace psring {

// Bits per second: a plain decimal number and one of bit, kbit, mbit, gbit, tbit (decimal units, as in tc),
// from 1kbit to 100tbit. "25G", "25Gb", "25Gbps", "25Gb/s", "25 Gbit/s" and "25GbE" are "25gbit".
// InvalidArgument, in one line: the unit is missing or of bytes ("25GB/s"), or the number is out of range.
absl::StatusOr<double> ParseBitRate(const std::string& text);

// "1 Gbit/s", "2.5 Gbit/s", "200 Mbit/s".
std::string BitRateText(double bits_per_s);

}  // namespace psring
