#include "experiments/stats/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>

namespace psring {
namespace {

TEST(Statistics, QuantilesInterpolateOrderStatistics) {
  EXPECT_DOUBLE_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(Quantile({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Quantile({1, 2}, 0), 1);
  EXPECT_DOUBLE_EQ(Quantile({1, 2}, 1), 2);
  EXPECT_DOUBLE_EQ(Quantile({}, 0.5), 0);
}

TEST(Statistics, TheGeometricMeanNeedsPositiveValues) {
  EXPECT_DOUBLE_EQ(GeometricMean({1, 4, 16}), 4);
  EXPECT_EQ(GeometricMean({}), 0);
  EXPECT_EQ(GeometricMean({1, 0}), 0);
  EXPECT_FALSE(GeometricMeanInterval({1, 2, 0}).has_value());
  EXPECT_FALSE(GeometricMeanInterval({1, 2, -1}).has_value());
}

TEST(Statistics, AnIntervalNeedsTwoValues) {
  EXPECT_FALSE(MeanInterval({}).has_value());
  EXPECT_FALSE(MeanInterval({5}).has_value());
  EXPECT_FALSE(GeometricMeanInterval({5}).has_value());
  for (const auto& interval : {MeanInterval({7, 7, 7}), GeometricMeanInterval({7, 7, 7})}) {
    EXPECT_NEAR(interval.value().low, 7, 1e-12);
    EXPECT_NEAR(interval.value().high, 7, 1e-12);
  }
}

TEST(Statistics, StudentsFactorMatchesPublishedTables) {
  EXPECT_NEAR(StudentsTFactor(1), 12.706, 1e-3);
  EXPECT_NEAR(StudentsTFactor(2), 4.303, 1e-3);
  EXPECT_NEAR(StudentsTFactor(4), 2.776, 1e-3);
  EXPECT_NEAR(StudentsTFactor(1000), 1.962, 1e-3);
  EXPECT_TRUE(std::isinf(StudentsTFactor(0)));
}

TEST(Statistics, TheIntervalOfTwoValuesIsWiderThanTheirRange) {
  const auto interval = MeanInterval({1, 3});  // standard error 1
  EXPECT_NEAR(interval->low, 2 - 12.706, 1e-3);
  EXPECT_NEAR(interval->high, 2 + 12.706, 1e-3);
}

// One kind of noise with the true value 1.
struct Noise {
  std::string name;
  std::function<double(std::mt19937_64&)> draw;
};

std::vector<Noise> Noises() {
  std::vector<Noise> noises;
  for (const double deviation : {0.02, 0.05, 0.1, 0.2})
    noises.push_back({"normal " + std::to_string(deviation), [deviation](std::mt19937_64& random) {
                        return std::normal_distribution<double>(1, deviation)(random);
                      }});
  for (const double sigma : {0.1, 0.3, 1.0})
    noises.push_back({"log-normal " + std::to_string(sigma), [sigma](std::mt19937_64& random) {
                        return std::exp(std::normal_distribution<double>(0, sigma)(random));
                      }});
  return noises;
}

class Coverage : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rounds, Coverage, testing::Values(2, 3, 5, 8));

TEST_P(Coverage, IntervalsContainTheTrueValueIn95PercentOfExperiments) {
  constexpr int kExperiments = 20000;
  std::mt19937_64 random(20240229);
  for (const Noise& noise : Noises()) {
    int covered = 0, covered_ratio = 0;
    for (int experiment = 0; experiment < kExperiments; ++experiment) {
      std::vector<double> first, second;
      while (static_cast<int>(first.size()) < GetParam()) {
        const double a = noise.draw(random), b = noise.draw(random);
        if (a > 0 && b > 0) first.push_back(a), second.push_back(b);
      }
      const auto contains_1 = [](const std::optional<Interval>& interval) {
        return interval->low <= 1 && 1 <= interval->high;
      };
      covered += contains_1(GeometricMeanInterval(first));
      covered_ratio += contains_1(ComparePairs(first, second).interval);
    }
    for (const int count : {covered, covered_ratio}) {
      EXPECT_GE(count, 0.93 * kExperiments) << noise.name;
      EXPECT_LE(count, 0.97 * kExperiments) << noise.name;
    }
  }
}

TEST_P(Coverage, EqualStrategiesRarelyHaveAWinner) {
  constexpr int kRuns = 2000, kComparisons = 4;
  std::mt19937_64 random(20240229);
  int named = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<PairedComparison> comparisons;
    for (int i = 0; i < kComparisons; ++i) {
      std::vector<double> first, second;
      std::normal_distribution<double> normal(0, 0.1);
      for (int round = 0; round < GetParam(); ++round) {
        first.push_back(std::exp(normal(random)));
        second.push_back(std::exp(normal(random)));
      }
      comparisons.push_back(ComparePairs(first, second));
    }
    const std::vector<bool> shown = ShowDifference(comparisons);
    named += std::find(shown.begin(), shown.end(), true) != shown.end();
  }
  EXPECT_LE(named, 2 * kWinnerLevel * kRuns);
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
  EXPECT_EQ(ShowDifference({pair}), std::vector<bool>{true});
}

TEST(Statistics, ThePValueMatchesATextbookExample) {
  // Differences of logarithms 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.4641 with 2 degrees of freedom.
  const PairedComparison pair = ComparePairs({std::exp(1.0), std::exp(2.0), std::exp(3.0)}, {1, 1, 1});
  EXPECT_NEAR(pair.p_value, 0.0742, 1e-4);
  EXPECT_NEAR(pair.ratio, std::exp(2.0), 1e-9);
}

TEST(Statistics, NoWinnerIfTheIntervalContains1OrThereIsNone) {
  EXPECT_EQ(ShowDifference({ComparePairs({10, 11, 9, 10, 12}, {10, 10, 11, 10, 10})}),
            std::vector<bool>{false});
  EXPECT_EQ(ShowDifference({ComparePairs({12}, {10}), ComparePairs({}, {})}),
            (std::vector<bool>{false, false}));
  EXPECT_TRUE(ShowDifference({}).empty());
}

TEST(Statistics, ACertainButSmallDifferenceNamesNoWinner) {
  const PairedComparison pair = ComparePairs({1010, 1010, 1010.1}, {1000, 1000, 1000});
  EXPECT_LT(pair.p_value, 1e-4);
  EXPECT_EQ(ShowDifference({pair}), std::vector<bool>{false});
}

TEST(Statistics, HolmsCorrectionStopsAtTheFirstThatIsNotRejected) {
  EXPECT_EQ(HolmRejected({0.01, 0.04, 0.03, 0.005}, 0.05), (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(HolmRejected({0.04}, 0.05), std::vector<bool>{true});
  EXPECT_TRUE(HolmRejected({}, 0.05).empty());
}

}  // namespace
}  // namespace psring
