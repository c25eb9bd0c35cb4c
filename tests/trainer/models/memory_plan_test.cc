#include "trainer/models/memory_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "trainer/layers/layers.h"

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

TEST(GradientPlan, AStageHasGradientsOfItsInputAndOutput) {
  const LayerTraits wide{.outputs = 100}, narrow{.outputs = 10};
  const std::vector<LayerPlace> chain = {{{0}, 1, &wide}, {{1}, 2, &narrow}};
  const GradientPlan middle = PlanGradients(1, chain, {.input = 30, .output = true});
  EXPECT_EQ(middle.piece_of, (Bounds{0, 1, 0})) << "that of the output is not in its place";
  EXPECT_EQ(middle.pieces, (std::vector<size_t>{30, 100}));
  const GradientPlan first = PlanGradients(1, chain, {.output = true});
  EXPECT_EQ(first.piece_of, (Bounds{GradientPlan::kNone, 1, 0}));
  const GradientPlan last = PlanGradients(1, chain, {.input = 30});
  EXPECT_EQ(last.piece_of, (Bounds{1, 0, GradientPlan::kInPlace}));
}

TEST(GradientPlan, AStageMayPassTheGradientOfItsOutputToItsInput) {
  const LayerTraits norm{.outputs = 8, .inputs = {kAddable}},
      sum{.outputs = 8, .inputs = {kWritten, kPassed}};
  const std::vector<LayerPlace> block = {{{0}, 1, &norm}, {{1, 0}, 2, &sum}};
  const GradientPlan plan = PlanGradients(1, block, {.input = 8, .output = true});
  EXPECT_EQ(plan.piece_of[0], plan.piece_of[2]);
  EXPECT_NE(plan.piece_of[1], plan.piece_of[2]);
  EXPECT_TRUE(plan.adds[0][0]);
}

TEST(GradientPlan, ForWeightsALayerKeepsItsGradientAndPassesACopy) {
  // The residual connection is added by a layer with weights (`sum`) or without (`drop`).
  const LayerTraits first{.outputs = 8, .parameters = {0, 24}, .early = 8},
      norm{.outputs = 8, .parameters = {24, 16}, .early = 16, .inputs = {kAddable}},
      sum{.outputs = 8, .parameters = {40, 24}, .early = 8, .inputs = {kWritten, kPassed}},
      last{.outputs = 3}, drop{.outputs = 8, .inputs = {kWritten, kPassed}};
  const auto block = [&](const LayerTraits& adding) {
    return std::vector<LayerPlace>{
        {{0}, 1, &first}, {{1}, 2, &norm}, {{2, 1}, 3, &adding}, {{3}, 4, &norm}, {{4}, 5, &last}};
  };
  const GradientPlan shared = PlanGradients(1, block(sum));
  const GradientPlan kept = PlanGradients(1, block(sum), {}, /*for_weights=*/true);
  EXPECT_EQ(shared.piece_of[3], shared.piece_of[1]);
  EXPECT_EQ(shared.pieces.size(), 2);
  for (const int other : {1, 2, 4}) EXPECT_NE(kept.piece_of[3], kept.piece_of[other]) << other;
  EXPECT_EQ(kept.piece_of[4], kept.piece_of[2]) << "what only computes the gradient of inputs is not kept";
  EXPECT_EQ(kept.adds, shared.adds);
  const GradientPlan without = PlanGradients(1, block(drop), {}, /*for_weights=*/true);
  EXPECT_EQ(without.piece_of[3], without.piece_of[1]) << "a layer without weights passes its gradient";
}

TEST(GradientPlanDeathTest, ASecondReaderMustBeAbleToAdd) {
  const LayerTraits layer{.outputs = 8}, two{.outputs = 8, .inputs = {kWritten, kWritten}};
  const std::vector<LayerPlace> diamond = {{{0}, 1, &layer}, {{1}, 2, &layer}, {{2, 1}, 3, &two}};
  EXPECT_DEATH(PlanGradients(1, diamond), "kAddable");
}

constexpr size_t kNowhere = ActivationPlan::kNowhere;
using Places = std::vector<size_t>;

// A stem, two units of three layers, and a head. Of a sample in float32, values and what layers keep of
// samples have 64 bytes, the inner values of the second unit 128.
class TwoUnits : public testing::Test {
 protected:
  static std::vector<LayerPlace> Layers(const LayerTraits& second_of_unit, const LayerTraits& last_of_unit) {
    static const LayerTraits narrow{.outputs = 16}, wide{.outputs = 32}, head{.outputs = 16};
    return {{{0}, 1, &narrow}, {{1}, 2, &narrow}, {{2}, 3, &second_of_unit},  {{3, 1}, 4, &last_of_unit},
            {{4}, 5, &wide},   {{5}, 6, &wide},   {{6, 4}, 7, &last_of_unit}, {{7}, 8, &head}};
  }
  static constexpr LayerRange kUnits[] = {{1, 4}, {4, 7}};
};

TEST_F(TwoUnits, ShareTheMemoryOfAllValuesButTheirOutputs) {
  const LayerTraits layer{.outputs = 16, .kept_bytes = 64};
  const ActivationPlan plan = PlanActivations({0}, Layers(layer, layer), {16}, kUnits, 1, DType::kFloat32);
  // Values: the stem, the units' outputs, the head. Then the piece, and what each unit's last layer keeps.
  EXPECT_EQ(plan.values[0], kNowhere);
  EXPECT_EQ((Places{plan.values[1], plan.values[4], plan.values[7], plan.values[8]}),
            (Places{0, 64, 128, 192}));
  EXPECT_EQ(plan.pieces, (Places{256}));
  EXPECT_EQ((Places{plan.kept[3], plan.kept[6]}), (Places{320, 384}));
  // Both units begin at the same place, and the larger one determines the size.
  EXPECT_EQ((Places{plan.values[2], plan.values[3], plan.kept[2]}), (Places{448, 512, 576}));
  EXPECT_EQ((Places{plan.values[5], plan.values[6]}), (Places{448, 576}));
  EXPECT_EQ(plan.bytes, 448 + 2 * 128);
}

TEST_F(TwoUnits, DoNotShareWhatALayerKeepsOfTheBatchAsAWhole) {
  const LayerTraits statistics{.outputs = 16, .kept_once = 10}, last{.outputs = 16};
  const ActivationPlan plan =
      PlanActivations({0}, Layers(statistics, last), {16}, kUnits, 1, DType::kFloat32);
  EXPECT_EQ(plan.kept[2], 320);
  EXPECT_EQ(plan.values[2], 384) << "after what is not shared";
}

TEST_F(TwoUnits, HaveMemoryOfTheirOwnUnlessTheyAreUnits) {
  const LayerTraits layer{.outputs = 16, .kept_bytes = 64};
  const ActivationPlan plan = PlanActivations({5}, Layers(layer, layer), {16}, {}, 3, DType::kBFloat16);
  // Of three samples: 30 bytes of the input, which take 64; 6 narrow values, 2 wide ones, a piece; 3 layers
  // that keep something.
  EXPECT_EQ(plan.values[0], 0);
  EXPECT_EQ(plan.values[1], 64);
  EXPECT_EQ(plan.bytes, 64 + 6 * 128 + 2 * 192 + 128 + 3 * 192);
}

// Of 8 positions and 2 of 4 heads: 16 sums in float32 and 16 vectors of 4 activations. The output is of 4
// positions and all heads.
TEST(PlanActivations, WhatUlyssesKeepsHasTheTypesThatItIsKeptIn) {
  const std::unique_ptr<Layer> layer = MakeUlyssesAttention(8, 4, 4, {.ranks = 2});
  const std::vector<LayerPlace> places = {{{0}, 1, &layer->traits()}};
  for (const auto& [type, bytes_each] : {std::pair(DType::kFloat32, 4), {DType::kBFloat16, 2}}) {
    const ActivationPlan plan = PlanActivations({0}, places, {}, {}, 1, type);
    EXPECT_EQ(plan.bytes, size_t{64} * bytes_each + 64 + size_t{64} * bytes_each) << bytes_each;
  }
}

}  // namespace
}  // namespace psring
