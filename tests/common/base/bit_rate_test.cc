#include "common/base/bit_rate.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace psring {
namespace {

TEST(BitRate, UnitsAreDecimalBitsPerSecond) {
  EXPECT_EQ(*ParseBitRate("1gbit"), 1e9);
  EXPECT_EQ(*ParseBitRate("200mbit"), 2e8);
  EXPECT_EQ(*ParseBitRate("2.5Gbit"), 2.5e9);
  EXPECT_EQ(*ParseBitRate("512kbit"), 512e3);
  EXPECT_EQ(*ParseBitRate("100tbit"), 1e14);
}

TEST(BitRate, AnInvalidRateIsAnErrorWithAnExample) {
  for (const char* text : {"", "1", "1000", "gbit", "1gb", "1 gbit", "1e9bit", "-1gbit", "1..2gbit", "fast",
                           "1bit", "0gbit", "101tbit", "nan", "inf"}) {
    const auto rate = ParseBitRate(text);
    EXPECT_EQ(rate.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StrContains(rate.status().message(), text)) << rate.status();
  }
  EXPECT_TRUE(absl::StrContains(ParseBitRate("1000").status().message(), "no unit"));
}

TEST(BitRate, IsShownInTheLargestUnitThatFits) {
  EXPECT_EQ(BitRateText(1e9), "1 Gbit/s");
  EXPECT_EQ(BitRateText(2.5e9), "2.5 Gbit/s");
  EXPECT_EQ(BitRateText(2e8), "200 Mbit/s");
  EXPECT_EQ(BitRateText(5e5), "500 kbit/s");
}

}  // namespace
}  // namespace psring
