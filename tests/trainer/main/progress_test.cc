#include "trainer/main/progress.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

std::string LastLines(bool counts_tokens, int world_size = 2) {
  int64_t now_ns = 0;
  const auto progress =
      MakeProgress("plain", /*rank=*/0, world_size, /*replicas=*/2, counts_tokens, [&] { return now_ns; });
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

TEST(PlainProgress, SpeedsOfPipelinesAreThoseOfAllReplicas) {
  EXPECT_EQ(LastLines(/*counts_tokens=*/false, /*world_size=*/8),
            "training with 8 ranks, 4 to each replica of the model\n"
            "step 10 of 10: 100 samples/s, loss 1.5000\n"
            "10 steps in 4.00 s: 100 samples/s\n");
}

TEST(PlainProgress, SpeedsOfATextCountTokens) {
  EXPECT_EQ(LastLines(/*counts_tokens=*/true),
            "training with 2 ranks\n"
            "step 10 of 10: 100 tokens/s, loss 1.5000\n"
            "10 steps in 4.00 s: 100 tokens/s\n");
}

TEST(PlainProgress, EvaluationsSayWhatIsLeft) {
  int64_t now_ns = 0;
  const auto progress = MakeProgress("plain", 0, 1, 1, /*counts_tokens=*/false, [&] { return now_ns; });
  testing::internal::CaptureStdout();
  progress->Ready();
  progress->Evaluating(0, 1000);
  for (int64_t done = 100; done <= 1000; done += 100) {
    now_ns += 1'000'000'000;
    progress->Evaluating(done, 1000);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "evaluating: 200 of 1000 samples, about 8 s left\n"
            "evaluating: 400 of 1000 samples, about 6 s left\n"
            "evaluating: 600 of 1000 samples, about 4 s left\n"
            "evaluating: 800 of 1000 samples, about 2 s left\n"
            "evaluating: 1000 of 1000 samples, about 0 s left\n");
}

}  // namespace
}  // namespace psring
