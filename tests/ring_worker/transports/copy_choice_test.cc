#include "ring_worker/transports/copy_choice.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

// Runs calls that take one of two times; how many of them passed the caches.
int Passed(CopyChoice& choice, int calls, int64_t through_ns, int64_t past_ns) {
  int passed = 0;
  for (int call = 0; call < calls; ++call) {
    const bool passes = choice.passes_caches();
    passed += passes ? 1 : 0;
    choice.Note(passes ? past_ns : through_ns);
  }
  return passed;
}

TEST(CopyChoice, TakesTheFasterWayAndSeldomTriesTheOther) {
  for (const bool past_is_faster : {false, true}) {
    CopyChoice choice;
    const int64_t through_ns = past_is_faster ? 200 : 100, past_ns = past_is_faster ? 100 : 200;
    EXPECT_EQ(Passed(choice, 15, through_ns, past_ns), 5) << "both are tried first";
    const int passed = Passed(choice, 1280, through_ns, past_ns);
    EXPECT_EQ(past_is_faster ? 1280 - passed : passed, past_is_faster ? 35 : 30);
  }
}

// Then the next try is some calls away.
constexpr int kWarmUp = 200;

TEST(CopyChoice, FollowsAMachineThatChanges) {
  CopyChoice choice;
  Passed(choice, kWarmUp, 100, 200);
  // The chosen way becomes slow: two calls show it.
  EXPECT_EQ(Passed(choice, 2, 900, 200), 0);
  EXPECT_EQ(Passed(choice, 20, 900, 200), 20);
  // The other way becomes fast: the next try shows it.
  Passed(choice, 256, 50, 200);
  EXPECT_EQ(Passed(choice, 20, 50, 200), 0);
}

TEST(CopyChoice, OneSlowCallChangesNothing) {
  CopyChoice choice;
  Passed(choice, kWarmUp, 100, 200);
  choice.Note(100'000);
  EXPECT_EQ(Passed(choice, 20, 100, 200), 0);
}

TEST(CopyChoice, ADisturbedFirstTryIsSoonRepeated) {
  CopyChoice choice;
  Passed(choice, 15, 1000, 200);
  EXPECT_EQ(Passed(choice, 16, 100, 200), 16);
  EXPECT_EQ(Passed(choice, 5, 100, 200), 0);
  EXPECT_EQ(Passed(choice, 16, 100, 200), 0);
}

TEST(CopyChoice, CallsThatFindTheOtherWaysCachesDoNotCount) {
  CopyChoice choice;
  // Past the caches only the first two calls of a row are fast.
  int in_row = 0;
  for (int call = 0; call < kWarmUp; ++call) {
    const bool passes = choice.passes_caches();
    in_row = passes ? in_row + 1 : 0;
    choice.Note(!passes ? 100 : in_row <= 2 ? 10 : 200);
  }
  EXPECT_EQ(Passed(choice, 20, 100, 200), 0);
}

}  // namespace
}  // namespace psring
