// Sizes and durations as users write them. Rates: bit_rate_test.cc.
#include <gtest/gtest.h>

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/byte_size.h"
#include "common/base/duration_text.h"

namespace psring {
namespace {

TEST(ByteSize, UsualSpellingsAreAccepted) {
  const struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {{"4096", 4096},    {"4K", 4096},       {"4k", 4096},    {"4KB", 4096},
               {"4kb", 4096},     {"4KiB", 4096},     {"4 KiB", 4096}, {"4Ki", 4096},
               {"1.5M", 3 << 19}, {"2G", 2ull << 30}, {"7B", 7},       {"1T", 1ull << 40}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(ParseByteSize(text).value(), bytes) << text;
  for (const char* text : {"", "B", "K", "iB", "4i", "44i", "4KKB", "4 5", "1gbit", "2T", "-1K", "4K,8K"})
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
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
