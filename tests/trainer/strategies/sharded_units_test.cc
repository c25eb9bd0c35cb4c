// The units of a model whose gradients or weights are sharded, their memory and the bytes that they send.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/trainer/cluster.h"
#include "trainer/data/sources.h"
#include "trainer/models/replayed_model.h"
#include "trainer/pipeline/step_units.h"
#include "trainer/strategies/table/shard_plan.h"

namespace psring {
namespace {

using testing::ElementsAre;

// The last unit's weights stay for backward, a tied table for the step, and the first others for the next
// micro-batch.
TEST(ShardedBytes, WeightsThatAreThereAreNotGatheredAgain) {
  for (TrainingOptions options : {SmallOptions("fsdp"), TinyGpt("fsdp")}) {
    options.steps = 1;
    const DataSplits& data = options.data == "text" ? SmallText() : SmallData();
    const auto gathered = [&] { return TrainRanks(options, 2, data)[0].result->gathered_elements; };
    const std::vector<int64_t> units = TrainRanks(options, 2, data)[0].result->bucket_elements;
    const int64_t all = std::accumulate(units.begin(), units.end(), int64_t{0});
    const bool is_tied = options.data == "text";
    EXPECT_EQ(gathered(), 2 * all - units.front() - (is_tied ? units.back() : 0));
    options.micro_batches = 3;
    const int64_t stay = 3 * units.front() + 2 * (is_tied ? units[units.size() - 2] : units.back());
    EXPECT_EQ(gathered(), 6 * all - stay - (is_tied ? 5 * units.back() : 0));
    options.reshard = "never";
    EXPECT_EQ(gathered(), all);
  }
}

TEST(ShardedBytes, FollowFromReductionsAndGatherings) {
  const StrategyRow ring = *FindStrategy("ring"), zero2 = *FindStrategy("zero2"),
                    fsdp = *FindStrategy("fsdp");
  EXPECT_EQ(ring.SentPart(1, 8), 1);
  EXPECT_EQ(zero2.SentPart(1), 1);
  EXPECT_EQ(zero2.SentPart(1, 8), 4.5);
  EXPECT_EQ(fsdp.SentPart(1), 1.5);
  EXPECT_EQ(fsdp.SentPart(1, 8), 12);
  EXPECT_EQ(fsdp.SentPart(1, 1, /*reshards=*/false), 1);
  EXPECT_EQ(fsdp.SentPart(1, 8, /*reshards=*/false), 4.5);
  // Of 8 ranks in two groups: 3/4 of halves, and 1/4 once, relative to 7/4.
  EXPECT_EQ(ring.SplitOf(8, 4).copies, 1);
  EXPECT_EQ(fsdp.SplitOf(8, 0).ranks, 8);
  EXPECT_DOUBLE_EQ(fsdp.SentPart(1, 1, true, fsdp.SplitOf(8, 4)), (3 * .75 + .25) / 1.75);
  EXPECT_DOUBLE_EQ(zero2.SentPart(1, 8, true, zero2.SplitOf(8, 4)), (9 * .75 + .25) / 1.75);
}

TEST(PlanBlocks, ABucketHasItsBlockOrOneInTurn) {
  const std::vector<ShardedBucket> buckets =
      ShardBuckets({{0, 100, 5}, {1, 60, 40}, {2, 20, 40}, {3, 0, 20}}, /*rank=*/1, 4);
  EXPECT_EQ(buckets[0].own().range.first, 101u);
  EXPECT_EQ(buckets[0].rest().range.count, 1u);
  EXPECT_EQ(buckets[1].own().at, 2u);
  const BlockMemory memory = PlanBlocks(buckets, {false, false, false, true}, /*turns=*/2);
  EXPECT_EQ(memory.parts, 2u + 10 + 10 + 5);
  // The parts, and blocks of 40, 40 and 20 elements, in multiples of 16.
  EXPECT_THAT(memory.blocks, ElementsAre(32, 80, 32, 128));
  EXPECT_EQ(memory.elements, 160u);
  const BlockMemory kept = PlanBlocks(buckets, std::vector<bool>(4, true), /*turns=*/1);
  EXPECT_THAT(kept.blocks, ElementsAre(32, 48, 96, 144));
}

std::vector<Bucket> UnitBucketsOf(const Model& model, bool recompute, std::vector<bool>& beside) {
  const std::vector<Bucket> buckets = UnitBuckets(model, model.CutPoints(), recompute);
  beside = UsedBesideOthers(PlanUnits(model.CompleteAfterLayers(), buckets),
                            BucketsOfLayers(model.LayerParameters(), buckets), buckets.size());
  return buckets;
}

TEST(UnitBuckets, AreHalfBlocksOrBlocksThatAreComputedAgain) {
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  const auto gpt = *ModelOf(TinyGpt("fsdp"))->make(SmallText().train.spec(), *ops);
  std::vector<bool> beside;
  // The last normalization, the halves of two blocks, and the embedding, whose table the loss uses, too.
  const std::vector<Bucket> halves = UnitBucketsOf(*gpt, /*recompute=*/false, beside);
  EXPECT_EQ(beside, (std::vector<bool>{false, false, false, false, false, true}));
  size_t end = gpt->parameters().count();
  for (const Bucket& bucket : halves)
    EXPECT_EQ(bucket.first + bucket.count, std::exchange(end, bucket.first));
  EXPECT_EQ(end, 0u);
  EXPECT_EQ(UnitBucketsOf(*gpt, /*recompute=*/true, beside).size(), 4u);
}

// Rajbhandari et al. 2020: 16 bytes per parameter with Adam, and 16/N of fsdp, with the weights and gradients
// of two units.
TEST(PlanBlocks, FsdpOfGptMiniOnFourRanksNeedsAThirdOfTheMemory) {
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  const auto gpt = *ModelOf({.model = "gpt-mini", .data = "text"})->make(TextSpec(256, 256), *ops);
  std::vector<bool> beside;
  const std::vector<ShardedBucket> buckets =
      ShardBuckets(UnitBucketsOf(*gpt, /*recompute=*/false, beside), /*rank=*/0, 4);
  const BlockMemory memory = PlanBlocks(buckets, beside, /*turns=*/2);
  const double elements = static_cast<double>(2 * memory.elements + 2 * memory.parts);
  EXPECT_NEAR(elements / (4.0 * static_cast<double>(gpt->parameters().count())), .341, .002);
}

TEST(DrawWeights, GivesTheInitialWeightsLayerByLayer) {
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  for (const auto& [options, data] :
       {std::pair{SmallOptions("ring"), &SmallData()}, {TinyGpt("ring"), &SmallText()}}) {
    const auto model = *ModelOf(options)->make(data->train.spec(), *ops);
    const std::vector<float> all = model->InitialWeights(3);
    std::vector<float> drawn(all.size());
    size_t largest = 0;
    model->DrawWeights(3, [&](const ReadyRange& range, const float* values) {
      std::copy_n(values, range.count, drawn.data() + range.first);
      largest = std::max(largest, range.count);
    });
    EXPECT_EQ(drawn, all);
    EXPECT_LT(largest, all.size());
  }
}

}  // namespace
}  // namespace psring
