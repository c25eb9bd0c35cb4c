#include "common/text/units.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace psring {
namespace {

TEST(BitRate, UnitsAreDecimalBitsPerSecond) {
  for (const auto& [text, bits_per_s] : {std::pair("1gbit", 1e9),
                                         {"200mbit", 2e8},
                                         {"2.5Gbit", 2.5e9},
                                         {"512kbit", 512e3},
                                         {"100tbit", 1e14}}) {
    EXPECT_EQ(*ParseBitRate(text), bits_per_s) << text;
  }
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

TEST(ByteSize, UsualSpellingsAreAccepted) {
  const struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {{"4096", 4096}, {"4K", 4096},       {"4k", 4096},  {"4KB", 4096},      {"4kb", 4096},
               {"4KiB", 4096}, {"4 KiB", 4096},    {"4Ki", 4096}, {"1.5M", 3 << 19},  {"2G", 2ull << 30},
               {"7B", 7},      {"1T", 1ull << 40}, {"0", 0},      {"2GB", 2ull << 30}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(ParseByteSize(text).value(), bytes) << text;
  for (const char* text : {"", "B", "K", "iB", "4i", "44i", "4KKB", "4 5", "1gbit", "2T", "-1K", "4K,8K",
                           "4X", "1e3", "inf", "4Xi", "0.1", "2000G", "1.2.3"})
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
}

TEST(Units, NumbersAreShortenedToThreeDigits) {
  EXPECT_EQ(ThreeDigits(0.12345), "0.123");
  EXPECT_EQ(ThreeDigits(12.0), "12");
  EXPECT_EQ(ThreeDigits(1234), "1.23e+03");
}

TEST(ByteSize, TextIsShortAndRoundTrips) {
  EXPECT_EQ(ByteSizeText(4096), "4K");
  EXPECT_EQ(ByteSizeText(3 << 19), "1.5M");
  EXPECT_EQ(ByteSizeText(1000), "1000");
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4095}, uint64_t{25} << 20, uint64_t{3} << 29})
    EXPECT_EQ(*ParseByteSize(ByteSizeText(bytes)), bytes);
}

TEST(DurationText, UsualSpellingsAreAccepted) {
  const struct {
    const char* text;
    absl::Duration duration;
  } cases[] = {{"90s", absl::Seconds(90)},
               {"90 sec", absl::Seconds(90)},
               {"10min", absl::Minutes(10)},
               {"10 Minutes", absl::Minutes(10)},
               {"1h30m", absl::Minutes(90)},
               {"1h 30 min", absl::Minutes(90)},
               {"2hours", absl::Hours(2)},
               {"0.5 ms", absl::Microseconds(500)},
               {"100usec", absl::Microseconds(100)},
               {"100µs", absl::Microseconds(100)},
               {"1.5d", absl::Hours(36)}};
  for (const auto& [text, duration] : cases) EXPECT_EQ(ParseDurationText(text), duration) << text;
  for (const char* text :
       {"", "10", "s", "1x", "1h30", "-1s", "1..5s", "1e3s", "inf", "1s,2s", "10 parsecs"}) {
    EXPECT_EQ(ParseDurationText(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace psring
