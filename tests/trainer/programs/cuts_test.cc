#include "trainer/programs/cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace psring {
namespace {

using testing::ElementsAre;

// The largest stage.
double SlowestOf(const std::vector<double>& cost, std::vector<size_t> cuts) {
  cuts.push_back(cost.size());
  double slowest = 0;
  size_t unit = 0;
  for (const size_t end : cuts) {
    double sum = 0;
    for (; unit < end; ++unit) sum += cost[unit];
    slowest = std::max(slowest, sum);
  }
  return slowest;
}

TEST(Cuts, MakeTheSlowestStageAsFastAsPossible) {
  const std::vector<double> cost = {3, 0, 5, 1, 1, 7, 2, 0, 4};
  const std::vector<size_t> points = {1, 2, 3, 4, 5, 6, 7, 8};
  double best = INFINITY;
  for (size_t first = 1; first < 8; ++first) {
    for (size_t second = first + 1; second <= 8; ++second)
      best = std::min(best, SlowestOf(cost, {first, second}));
  }
  EXPECT_EQ(SlowestOf(cost, BalancedCuts({.cost = cost, .points = points}, 3)), best);
  EXPECT_THAT(BalancedCuts({.cost = cost, .points = points}, 1), ElementsAre());
  EXPECT_EQ(BalancedCuts({.cost = cost, .points = points}, 9), points);
  EXPECT_THAT(BalancedCuts({.cost = cost, .points = {2, 7}}, 2), ElementsAre(7)) << "19 and 4, not 3 and 20";
}

TEST(Cuts, OfEqualOnesCrossLeastAndHaveTheLongestLastStages) {
  CutUnits units{.cost = {4, 0, 0, 4}, .points = {1, 2, 3}};
  EXPECT_THAT(BalancedCuts(units, 2), ElementsAre(1));
  units.crossing = {9, 2, 2};
  EXPECT_THAT(BalancedCuts(units, 2), ElementsAre(2));
  units.weights = {true, false, false, true};
  EXPECT_THAT(BalancedCuts(units, 3).size(), 2u) << "three stages cannot all have weights";
  units.weights = {true, true, false, true};
  EXPECT_THAT(BalancedCuts(units, 3), ElementsAre(1, 2)) << "the first two each have weights";
}

TEST(Cuts, BalanceManyUnits) {
  CutUnits units{.cost = std::vector<double>(1024, 1)};
  for (size_t unit = 1; unit < 1024; ++unit) units.points.push_back(unit);
  EXPECT_EQ(SlowestOf(units.cost, BalancedCuts(units, 8)), 128);
}

TEST(Cuts, AreChecked) {
  const auto says = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_TRUE(CheckCutPoints({1, 2, 4}, {1, 4}).ok());
  EXPECT_TRUE(CheckCutPoints({}, {}).ok());
  for (const std::vector<size_t>& wrong : {std::vector<size_t>{3}, {2, 1}, {2, 2}, {0}}) {
    EXPECT_THAT(
        says(CheckCutPoints({1, 2, 4}, wrong)),
        testing::EndsWith(
            ": the model can be cut before the layers 1,2,4; give some of them, in increasing order"));
  }
  EXPECT_EQ(says(CheckCutPoints({}, {1})), "this model cannot be cut into stages; omit --pp");
  EXPECT_TRUE(CheckStageCount({1, 2, 4}, 4).ok());
  EXPECT_EQ(says(CheckStageCount({1, 2, 4}, 5)),
            "this model can be cut into 1 to 4 stages, not 5; give another --pp");
}

}  // namespace
}  // namespace psring
