#include "trainer/step/plan/loss_history.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

// Steps 0 to `steps` - 1, each with 2 samples and its own number as loss.
LossHistory Numbered(int steps, size_t most_blocks) {
  LossHistory history(most_blocks);
  for (int i = 0; i < steps; ++i) history.Add({.step = i, .samples = 2, .counted = 2, .loss = 1. * i});
  return history;
}

TEST(LossHistory, IsEmptyAtFirst) {
  LossHistory history;
  EXPECT_EQ(history.TakeMean(), 0);
  EXPECT_EQ(history.MeanOfLastTenth(), 0);
  EXPECT_EQ(history.RemoveFrom(0), 0);
}

TEST(LossHistory, WeightsLossesBySamples) {
  LossHistory history;
  history.Add({.step = 0, .samples = 1, .loss = 4});
  history.Add({.step = 1, .samples = 3, .loss = 8});
  EXPECT_EQ(history.TakeMean(), 7);
}

TEST(LossHistory, TakeMeanIsOverTheStepsSinceTheLastCallOrTheLastStep) {
  LossHistory history = Numbered(10, 100);
  EXPECT_EQ(history.TakeMean(), 4.5);
  history.Add({.step = 10, .samples = 2, .loss = 3});
  history.Add({.step = 11, .samples = 2, .loss = 5});
  EXPECT_EQ(history.TakeMean(), 4);
  EXPECT_EQ(history.TakeMean(), 5);
}

TEST(LossHistory, TheLastTenthHasAtLeastOneStep) {
  EXPECT_EQ(Numbered(5, 100).MeanOfLastTenth(), 4);
  EXPECT_EQ(Numbered(30, 100).MeanOfLastTenth(), 28);
}

TEST(LossHistory, RemovedStepsNoLongerCount) {
  LossHistory history = Numbered(10, 100);
  (void)history.TakeMean();
  EXPECT_EQ(history.RemoveFrom(7), 6);
  EXPECT_EQ(history.RemoveFrom(7), 0);
  EXPECT_EQ(history.MeanOfLastTenth(), 6);
  history.Add({.step = 7, .samples = 2, .counted = 2, .loss = 20});
  EXPECT_EQ(history.TakeMean(), 20);
}

TEST(LossHistory, MergesStepsInsteadOfGrowing) {
  LossHistory history = Numbered(1000, 16);
  EXPECT_EQ(history.TakeMean(), 499.5);
  EXPECT_NEAR(history.MeanOfLastTenth(), 949.5, 64) << "a block may begin before the last tenth";
  EXPECT_EQ(history.RemoveFrom(333), 2 * (1000 - 333)) << "within a block";
  EXPECT_EQ(history.RemoveFrom(0), 2 * 333);
}

}  // namespace
}  // namespace psring
