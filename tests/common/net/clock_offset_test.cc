#include "common/net/clock_offset.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/random_moments.h"

namespace psring {
namespace {

TEST(OffsetOf, TakesTheFastestReply) {
  const ClockOffset offset = OffsetOf({{.asked = 0, .theirs = 9000, .answered = 4000},
                                       {.asked = 5000, .theirs = 12'050, .answered = 5100},
                                       {.asked = 6000, .theirs = 13'900, .answered = 7000}});
  EXPECT_EQ(offset.at, 5050);
  EXPECT_EQ(offset.ahead, 7000);
  EXPECT_EQ(offset.within, 50);
}

TEST(OffsetOf, ErrorIsWithinItsBound) {
  std::mt19937_64 random(TestSeed());
  const auto up_to = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  for (int i = 0; i < 1000; ++i) {
    const int64_t truth = up_to(1'000'000'000) - 500'000'000;
    std::vector<ClockReading> readings;
    for (int64_t now = 0; readings.size() < 8; now += 1'000'000) {
      const int64_t there = up_to(300'000), back = up_to(300'000);  // ways of different length
      readings.push_back({.asked = now, .theirs = now + there + truth, .answered = now + there + back});
    }
    const ClockOffset offset = OffsetOf(readings);
    EXPECT_LE(std::abs(offset.ahead - truth), offset.within);
  }
}

TEST(ClockMap, FollowsAClockThatRunsFaster) {
  const ClockMap map({.at = 1000, .ahead = 500, .within = 3}, {.at = 1'001'000, .ahead = 550, .within = 2});
  EXPECT_EQ(map.Theirs(1000), 1500);
  EXPECT_EQ(map.Theirs(501'000), 501'525);
  EXPECT_EQ(map.Theirs(1'001'000), 1'001'550);
  EXPECT_EQ(map.within(), 3);
  EXPECT_FALSE(map.same());
}

TEST(ClockMap, OfOneClockIsTheIdentity) {
  EXPECT_TRUE(ClockMap().same());
  EXPECT_EQ(ClockMap().Theirs(123), 123);
  EXPECT_EQ(ClockMap({.at = 5, .ahead = 7}, {.at = 5, .ahead = 7}).Theirs(100), 107);
}

}  // namespace
}  // namespace psring
