#include "experiments/stats/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace psring {
namespace {

TEST(Statistics, QuantilesInterpolateOrderStatistics) {
  EXPECT_DOUBLE_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(Quantile({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Quantile({1, 2}, 0), 1);
  EXPECT_DOUBLE_EQ(Quantile({1, 2}, 1), 2);
  EXPECT_DOUBLE_EQ(Quantile({}, 0.5), 0);
}

TEST(Statistics, OneValueHasNoInterval) {
  EXPECT_FALSE(BootstrapMean({}).has_value());
  EXPECT_FALSE(BootstrapMean({5}).has_value());
}

TEST(Statistics, EqualValuesHaveAnIntervalOfWidth0) {
  const auto interval = BootstrapMean({7, 7, 7});
  ASSERT_TRUE(interval.has_value());
  EXPECT_DOUBLE_EQ(interval->low, 7);
  EXPECT_DOUBLE_EQ(interval->high, 7);
}

TEST(Statistics, TwoValuesSpanTheWholeRange) {
  // Each end is a quarter of all resamples, more than 2.5%.
  const auto interval = BootstrapMean({1, 3});
  EXPECT_DOUBLE_EQ(interval->low, 1);
  EXPECT_DOUBLE_EQ(interval->high, 3);
}

TEST(Statistics, TheIntervalOfManyNormalValuesMatchesTheNormalApproximation) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(100, 10);
  std::vector<double> values(400);
  for (double& value : values) value = normal(random);
  const auto interval = BootstrapMean(values);
  const double mean = Mean(values);
  const double half = 1.96 * 10 / std::sqrt(400.0);
  EXPECT_NEAR(interval->low, mean - half, 0.15);
  EXPECT_NEAR(interval->high, mean + half, 0.15);
}

TEST(Statistics, TheSameNumbersGiveTheSameInterval) {
  const std::vector<double> values = {3, 1, 4, 1, 5};
  EXPECT_EQ(BootstrapMean(values)->low, BootstrapMean(values)->low);
}

TEST(Statistics, PairsCancelTheEffectOfARound) {
  // Rounds differ by a factor of 10; within each the first is 20% above the second.
  const std::vector<double> second = {10, 100, 30, 70, 50};
  std::vector<double> first;
  for (double value : second) first.push_back(1.2 * value);
  const PairedComparison pair = ComparePairs(first, second);
  EXPECT_NEAR(pair.ratio, 1.2, 1e-12);
  EXPECT_NEAR(pair.interval->low, 1.2, 1e-12);
  EXPECT_NEAR(pair.interval->high, 1.2, 1e-12);
  EXPECT_TRUE(pair.differs);
}

TEST(Statistics, NoWinnerIfTheIntervalContains1) {
  const PairedComparison pair = ComparePairs({10, 11, 9, 10, 12}, {10, 10, 11, 10, 10});
  EXPECT_FALSE(pair.differs);
}

TEST(Statistics, NoWinnerOverFewRounds) {
  EXPECT_FALSE(ComparePairs({12, 12, 12}, {10, 10, 10}).differs);
  EXPECT_FALSE(ComparePairs({12}, {10}).differs);
  EXPECT_FALSE(ComparePairs({}, {}).differs);
}

}  // namespace
}  // namespace psring
