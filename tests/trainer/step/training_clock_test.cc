#include "trainer/step/plan/training_clock.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

constexpr int kWorkers = 3;

// 10 samples per step.
constexpr StepPlan kPlan{.warmup_steps = 2,
                         .steps = 8,
                         .global_batch = 10,
                         .total_samples = 100,
                         .drawn_batch = 10,
                         .steps_per_epoch = 100,
                         .epoch_samples = 1000};

TrainingClock ClockOf(const char* strategy) {
  TrainingClock clock(kPlan, kWorkers, CountingOf(*FindStrategy(strategy)));
  clock.BeginAt(0);
  return clock;
}

TEST(TrainingClock, CountsStepsIfAnUpdateContainsAllGradients) {
  TrainingClock clock = ClockOf("ring");
  EXPECT_FALSE(clock.each_push());
  for (int step = 0; step < 10; ++step) {
    EXPECT_FALSE(clock.is_over());
    EXPECT_EQ(clock.next(), step);
    EXPECT_EQ(clock.samples(), 10 * step);
    clock.Finish({});
  }
  EXPECT_TRUE(clock.is_over());
  EXPECT_EQ(clock.updates(), 10);
  EXPECT_EQ(clock.checkpoint_step(), 10);
}

TEST(TrainingClock, FollowsTheServerToAnotherStep) {
  TrainingClock clock = ClockOf("ps-sync");
  for (int step = 0; step < 5; ++step) clock.Finish({.version = step + 1});
  clock.Finish({.version = 2, .next_step = 2});
  EXPECT_EQ(clock.next(), 2);
  EXPECT_EQ(clock.samples(), 20);
  clock.GoBackTo(1);
  EXPECT_EQ(clock.steps_done(), 1);
}

TEST(TrainingClock, CountsUpdatesIfEachPushIsOne) {
  TrainingClock clock = ClockOf("ps-ssp:1");
  EXPECT_TRUE(clock.each_push());
  clock.Finish({.version = 7});
  EXPECT_EQ(clock.next(), 1);
  EXPECT_EQ(clock.updates(), 7);
  EXPECT_EQ(clock.steps_done(), 2);
  EXPECT_EQ(clock.samples(), 23);
  EXPECT_EQ(clock.checkpoint_step(), 1) << "the worker's own step";
  clock.End();
  EXPECT_EQ(clock.updates(), 30);
  EXPECT_EQ(clock.samples(), 100);
}

TEST(TrainingClock, SharedStepsEndWithTheBudgetOfAllWorkers) {
  TrainingClock clock = ClockOf("ps-async");
  clock.Finish({.version = 27});
  EXPECT_FALSE(clock.is_over());
  clock.Finish({.version = 28});
  EXPECT_TRUE(clock.is_over()) << "after two steps of its own";
  EXPECT_EQ(clock.checkpoint_step(), 9);
}

TEST(TrainingClock, ResumesWithTheSamplesOfTheCheckpoint) {
  TrainingClock clock(kPlan, kWorkers, CountingOf(*FindStrategy("ps-async")));
  clock.ResumeAt(/*step=*/4, /*samples=*/400, /*beyond=*/1);
  clock.BeginAt(4);
  EXPECT_EQ(clock.samples(), 400);
  EXPECT_EQ(clock.updates(), 13);
  EXPECT_EQ(clock.SamplesAt(16), 410);
}

}  // namespace
}  // namespace psring
