#include "trainer/process/progress.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

std::string LastLines(bool counts_tokens) {
  int64_t now_ns = 0;
  const auto progress =
      MakeProgress("plain", /*rank=*/0, /*world_size=*/2, counts_tokens, [&] { return now_ns; });
  testing::internal::CaptureStdout();
  progress->Ready();
  now_ns = 4'000'000'000;
  progress->Step({.done = 10, .planned = 10, .samples = 200, .loss = 1.5});
  RankResult result;
  result.steps = 10;
  result.wall_s = 4;
  result.samples = 200;
  progress->Done(result);
  return testing::internal::GetCapturedStdout();
}

TEST(PlainProgress, SpeedsAreThoseOfAllRanks) {
  EXPECT_EQ(LastLines(/*counts_tokens=*/false),
            "training with 2 ranks\n"
            "step 10 of 10: 100 samples/s, loss 1.5000\n"
            "10 steps in 4.00 s: 100 samples/s\n");
}

TEST(PlainProgress, SpeedsOfATextCountTokens) {
  EXPECT_EQ(LastLines(/*counts_tokens=*/true),
            "training with 2 ranks\n"
            "step 10 of 10: 100 tokens/s, loss 1.5000\n"
            "10 steps in 4.00 s: 100 tokens/s\n");
}

}  // namespace
}  // namespace psring
