#include "common/base/bit_rate.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace psring {
namespace {

TEST(BitRate, UnitsAreDecimalBitsPerSecond) {
  EXPECT_EQ(*ParseBitRate("1gbit"), 1e9);
  EXPECT_EQ(*ParseBitRate("200mbit"), 2e8);
  EXPECT_EQ(*ParseBitRate("2.5Gbit"), 2.5e9);
  EXPECT_EQ(*ParseBitRate("512kbit"), 512e3);
  EXPECT_EQ(*ParseBitRate("100tbit"), 1e14);
}

TEST(BitRate, UsualSpellingsAreAccepted) {
  for (const char* text :
       {"25Gbps", "25gbps", "25Gb/s", "25Gbit/s", "25Gbits/s", "25GbE", "25gbit", "25000Mbps", "25g", "25G",
        "25gb", "25Gb", "25000M", "25 gbit", "25 Gbit/s", "0.025T"}) {
    EXPECT_EQ(ParseBitRate(text).value(), 25e9) << text;
  }
  EXPECT_EQ(*ParseBitRate("9600b/s"), 9600);
}

TEST(BitRate, BytesAreNotTakenForBits) {
  const struct {
    const char *text, *bits;
  } cases[] = {{"25GB/s", "200gbit"},   {"25GBps", "200gbit"},    {"1GB", "8gbit"},
               {"1 GB", "8gbit"},       {"0.5MB/s", "4mbit"},     {"25Mbytes/s", "200mbit"},
               {"512B/s", "4.096kbit"}, {"1MiB/s", "8.38861mbit"}};
  for (const auto& [text, bits] : cases)
    EXPECT_EQ(ParseBitRate(text).status().message(),
              absl::StrCat("'", text, "' is in bytes, but a rate is in bits; write ", bits));
}

TEST(BitRate, AnInvalidRateIsAnErrorWithAnExample) {
  for (const char* text : {"", "1", "1000", "gbit", "1x", "1gibit", "1gbitps", "1 g bit", "1e9bit", "-1gbit",
                           "1..2gbit", "fast", "1bit", "10be", "0gbit", "101tbit", "nan", "inf"}) {
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
