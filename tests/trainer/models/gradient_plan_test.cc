#include "trainer/models/gradient_plan.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

constexpr auto kWritten = InputGradient::kWritten, kAddable = InputGradient::kAddable,
               kPassed = InputGradient::kPassed;
using Bounds = std::vector<int>;

TEST(GradientPlan, AChainNeedsTwoPieces) {
  const LayerTraits wide{.outputs = 100}, narrow{.outputs = 10};
  const std::vector<LayerPlace> chain = {
      {{0}, 1, &wide}, {{1}, 2, &narrow}, {{2}, 3, &wide}, {{3}, 4, &narrow}};
  const GradientPlan plan = PlanGradients(1, chain);
  // Backward of a layer reads the gradient of its output while it writes that of its input.
  EXPECT_EQ(plan.piece_of, (Bounds{GradientPlan::kNone, 0, 1, 0, GradientPlan::kInPlace}));
  EXPECT_EQ(plan.pieces, (std::vector<size_t>{100, 10}));
  EXPECT_FALSE(plan.adds[1][0]);
}

TEST(GradientPlan, AResidualConnectionPassesItsGradientAndTheBranchAddsToIt) {
  // Value 1 is read by a normalization (2) and by the layer that adds it to the branch (3).
  const LayerTraits first{.outputs = 8}, norm{.outputs = 8, .inputs = {kAddable}},
      sum{.outputs = 8, .inputs = {kWritten, kPassed}}, last{.outputs = 3};
  const std::vector<LayerPlace> block = {
      {{0}, 1, &first}, {{1}, 2, &norm}, {{2, 1}, 3, &sum}, {{3}, 4, &last}};
  const GradientPlan plan = PlanGradients(1, block);
  EXPECT_EQ(plan.piece_of[3], plan.piece_of[1]) << "the gradient of the sum is that of its input";
  EXPECT_NE(plan.piece_of[2], plan.piece_of[1]);
  EXPECT_TRUE(plan.adds[1][0]);
  EXPECT_FALSE(plan.adds[2][0]);
  EXPECT_EQ(plan.pieces.size(), 2) << "as many blocks as there may be";
}

TEST(GradientPlanDeathTest, ASecondReaderMustBeAbleToAdd) {
  const LayerTraits layer{.outputs = 8}, two{.outputs = 8, .inputs = {kWritten, kWritten}};
  const std::vector<LayerPlace> diamond = {{{0}, 1, &layer}, {{1}, 2, &layer}, {{2, 1}, 3, &two}};
  EXPECT_DEATH(PlanGradients(1, diamond), "kAddable");
}

}  // namespace
}  // namespace psring
