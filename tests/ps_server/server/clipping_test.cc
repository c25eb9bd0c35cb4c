#include "ps_server/server/clipping.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

TEST(ClippingTest, AStepIsCompleteOnceWhenTheLastBucketIsHeld) {
  Clipping clipping(2);
  EXPECT_FALSE(clipping.TakeComplete().has_value());
  clipping.Hold(1, {.workers = {0, 1}, .step = 4, .sum_of_squares = 2});
  EXPECT_FALSE(clipping.TakeComplete().has_value());
  clipping.Hold(0, {.workers = {0, 1}, .step = 4, .sum_of_squares = 0.5});
  const auto complete = clipping.TakeComplete();
  ASSERT_TRUE(complete.has_value());
  EXPECT_EQ(complete->step, 4);
  EXPECT_EQ(complete->sum_of_squares, 2.5);
  EXPECT_EQ(complete->workers, (std::vector<int>{0, 1}));
  EXPECT_FALSE(clipping.TakeComplete().has_value());
}

TEST(ClippingTest, TheSumDoesNotDependOnTheOrderOfArrival) {
  const std::vector<double> parts = {1e16, 1, -1e16, 1};
  const auto sum = [&](const std::vector<int>& order) {
    Clipping clipping(parts.size());
    for (const int bucket : order) {
      clipping.Hold(bucket, {.sum_of_squares = parts[static_cast<size_t>(bucket)]});
    }
    return clipping.TakeComplete()->sum_of_squares;
  };
  EXPECT_EQ(sum({0, 1, 2, 3}), sum({3, 1, 0, 2}));
  EXPECT_NE(sum({0, 1, 2, 3}), 2) << "the order of addition must matter here";
}

TEST(ClippingTest, AHeldUpdateCollectsReadersUntilItIsTaken) {
  Clipping clipping(1);
  EXPECT_FALSE(clipping.AddReaders(0, {1}));
  clipping.Hold(0, {.workers = {0}, .samples = 8, .may_read = {0}});
  EXPECT_TRUE(clipping.Holds(0));
  EXPECT_TRUE(clipping.AddReaders(0, {2}));
  const Clipping::Update update = clipping.Take(0);
  EXPECT_EQ(update.may_read, (std::vector<int>{0, 2}));
  EXPECT_EQ(update.samples, 8);
  EXPECT_FALSE(clipping.Holds(0));
}

TEST(ClippingTest, OnlyTheFirstTotalOfTheAwaitedStepIsUsed) {
  Clipping clipping(1);
  EXPECT_FALSE(clipping.TakeTotal(-1)) << "none is awaited";
  clipping.AwaitTotal(3);
  EXPECT_FALSE(clipping.TakeTotal(2));
  EXPECT_TRUE(clipping.TakeTotal(3));
  EXPECT_FALSE(clipping.TakeTotal(3));
}

}  // namespace
}  // namespace psring
