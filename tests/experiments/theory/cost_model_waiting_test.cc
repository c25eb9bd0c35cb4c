#include "experiments/theory/cost_model_waiting.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

TEST(WaitingTheory, AServerIsNeverFasterThanItsServiceNorThanItsWorkers) {
  EXPECT_DOUBLE_EQ(AsyncThroughputBound({0.9, 0.9}, 0.1), 2);
  EXPECT_DOUBLE_EQ(AsyncThroughputBound(std::vector<double>(100, 0.9), 0.1), 10);
  EXPECT_DOUBLE_EQ(AsyncThroughputBound({1, 3}, 0), 1 + 1.0 / 3);
}

TEST(WaitingTheory, MeanValueAnalysisKnowsItsLimits) {
  EXPECT_DOUBLE_EQ(MeanValueAnalysis(1, 3, 1).pushes_per_s, 0.25);
  // By hand: Q(1) = 1/4, R(2) = 5/4, X(2) = 2 / (17/4).
  EXPECT_DOUBLE_EQ(MeanValueAnalysis(2, 3, 1).pushes_per_s, 8.0 / 17);
  EXPECT_NEAR(MeanValueAnalysis(1000, 3, 1).pushes_per_s, 1, 1e-9);
  EXPECT_DOUBLE_EQ(MeanValueAnalysis(5, 0, 2).at_server, 5);
}

TEST(WaitingTheory, StalenessDependsOnTheOthersRatesAndOnAverageOnNothing) {
  EXPECT_DOUBLE_EQ(StalenessOfWorker({2, 1, 1}, 0), 1);
  EXPECT_DOUBLE_EQ(StalenessOfWorker({2, 1, 1}, 1), 3);
  // Weighted by how often each pushes: (2 * 1 + 1 * 3 + 1 * 3) / 4.
  EXPECT_DOUBLE_EQ(MeanStaleness(3), (2 * 1 + 3 + 3) / 4.0);
  EXPECT_DOUBLE_EQ(MostStaleness(4, 2), 15);
}

TEST(WaitingTheory, BackupWorkersWaitForTheFastest) {
  EXPECT_DOUBLE_EQ(FastestOf({5, 1, 3}, 3), 5);
  EXPECT_DOUBLE_EQ(FastestOf({5, 1, 3}, 2), 3);
}

}  // namespace
}  // namespace psring
