#include "common/base/byte_size.h"

#include <cctype>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr char kSuffixes[] = "KMGT";
constexpr double kMaxBytes = 1099511627776;  // 2^40

// 1 for K, 2 for M, ...; 0: not a suffix.
int SuffixAt(char letter) {
  return static_cast<int>(std::string(kSuffixes).find(absl::ascii_toupper(letter)) + 1);
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(const std::string& text) {
  const auto refused = [&text] {
    return absl::InvalidArgumentError(
        Tr("'$0' is not a size; write bytes, or a number with K, M or G", text));
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
  if (bytes != std::floor(bytes)) {
    return absl::InvalidArgumentError(Tr("'$0' is not a whole number of bytes", text));
  }
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

}  // namespace psring
