// The inverse of absl::BytesToHexString. absl::HexStringToBytes has a different signature in newer releases.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace psring {

// Empty if `digits` are not pairs of hexadecimal digits.
inline std::string BytesFromHex(absl::string_view digits) {
  const auto value = [](char digit) {
    return absl::ascii_isdigit(digit) ? digit - '0' : absl::ascii_tolower(digit) - 'a' + 10;
  };
  std::string bytes;
  if (digits.size() % 2 != 0) return bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    if (!absl::ascii_isxdigit(digits[i]) || !absl::ascii_isxdigit(digits[i + 1])) return "";
    bytes.push_back(static_cast<char>(value(digits[i]) * 16 + value(digits[i + 1])));
  }
  return bytes;
}

}  // namespace psring
