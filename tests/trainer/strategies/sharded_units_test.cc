// zero1, zero2 and fsdp compared with ring, in training; ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/trainer/kept_training.h"
#include "trainer/data/sources.h"
#include "trainer/models/replayed_model.h"
#include "trainer/pipeline/step_units.h"
#include "trainer/strategies/table/shard_plan.h"

namespace psring {
namespace {

using testing::ElementsAre;

struct ShardedWay {
  const char *strategy, *reshard;

  TrainingOptions Of(TrainingOptions options) const {
    options.strategy = strategy;
    options.reshard = reshard;
    return options;
  }
};
std::ostream& operator<<(std::ostream& out, const ShardedWay& way) {
  return out << way.strategy << " --reshard " << way.reshard;
}

TrainingOptions CnnOfRing() {
  TrainingOptions options = SmallOptions("ring");
  options.model = "cnn";
  return options;
}

TrainingOptions GptOfRing() {
  TrainingOptions options = TinyGpt("ring");
  options.optimizer = "adamw";
  options.dropout = .1;
  return options;
}

class Shards : public testing::TestWithParam<ShardedWay> {
 protected:
  // Each two ranks of four have one copy of the state. A sum of two has one order, so that of all is the one
  // of hierarchical:2, which first adds up within two ranks.
  static TrainingOptions Hybrid(const TrainingOptions& options) {
    TrainingOptions hybrid = GetParam().Of(options);
    hybrid.dp_shard = 2;
    return hybrid;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, Shards,
                         testing::Values(ShardedWay{"zero1", "forward"}, ShardedWay{"zero2", "forward"},
                                         ShardedWay{"fsdp", "forward"}, ShardedWay{"fsdp", "never"}));

TEST_P(Shards, TwoRanksHaveTheBitsOfARing) {
  const std::pair<TrainingOptions, const DataSplits*> cases[] = {{SmallOptions("ring"), &SmallData()},
                                                                 {CnnOfRing(), &SmallData()},
                                                                 {GptOfRing(), &SmallText()},
                                                                 {TinyResNet("ring"), &SmallPictures()}};
  for (auto [options, data] : cases) {
    SCOPED_TRACE(options.model);
    options.steps = 6;
    options.evaluate = true;
    options.eval_every = 3;
    options.check_replicas = true;
    const auto ring = TrainRanks(options, 2, *data), ranks = TrainRanks(GetParam().Of(options), 2, *data);
    for (size_t rank = 0; rank < 2; ++rank) {
      ExpectSameTraining(ranks[rank], ring[rank]);
      EXPECT_EQ(ranks[rank].result->weights_hash, ring[rank].result->weights_hash);
      EXPECT_EQ(ranks[rank].result->curve.size(), rank == 0 ? 2u : 0u);
    }
  }
}

TEST_P(Shards, MoreRanksWithMicroBatchesAndClippingAreCloseToARing) {
  for (const auto& [workers, clip_norm] : {std::pair{3, 0.0}, {4, 1e-3}}) {
    for (const auto& [model, data] :
         {std::pair{SmallOptions("ring"), &SmallData()}, {TinyGpt("ring"), &SmallText()}}) {
      SCOPED_TRACE(absl::StrCat(model.model, " on ", workers));
      TrainingOptions options = model;
      options.optimizer = "sgd";
      options.lr = clip_norm > 0 ? 10 : .1;
      options.batch = 4;
      options.micro_batches = 3;
      options.clip_norm = clip_norm;
      const std::vector<float> ring = WeightsOf(TrainRanks(options, workers, *data));
      for (const RankOutcome& rank : TrainRanks(GetParam().Of(options), workers, *data)) {
        EXPECT_LE(RelativeL2(rank.weights, ring), 1e-4);
      }
    }
  }
}

TEST_P(Shards, BlocksThatAreComputedAgainGiveTheSameBits) {
  TrainingOptions gpt = GptOfRing();
  gpt.layers = 3;
  for (auto [options, data] : {std::pair(gpt, &SmallText()), {TinyResNet("ring"), &SmallPictures()}}) {
    SCOPED_TRACE(options.model);
    options.steps = 4;
    const std::vector<float> ring = WeightsOf(TrainRanks(options, 2, *data));
    options.recompute = true;
    EXPECT_EQ(WeightsOf(TrainRanks(GetParam().Of(options), 2, *data)), ring);
  }
}

TEST_P(Shards, ARingContinuesTheirCheckpointsAndTheyContinueThoseOfARing) {
  TrainingOptions options = SmallOptions("ring");
  options.optimizer = "adamw";
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 12;
  KeptSteps ring, own;
  const std::vector<float> end = WeightsOf(RunKeeping(options, 2, SmallData(), ring));
  const TrainingOptions sharded = GetParam().Of(options);
  EXPECT_EQ(WeightsOf(RunKeeping(sharded, 2, SmallData(), own)), end);
  for (const int64_t step : {12, 20}) {
    ASSERT_TRUE(ring.contains(step) && own.contains(step));
    for (const char* file : {kModelFile, kOptimizerFile}) {
      EXPECT_TRUE(own[step][file] == ring[step][file]) << file << " of step " << step;
    }
  }
  for (const auto& [from, to] :
       {std::pair(&ring, &sharded), {&own, &std::as_const(options)}, {&own, &sharded}}) {
    KeptSteps kept;
    EXPECT_EQ(WeightsOf(RunKeeping(*to, 2, SmallData(), kept, &from->at(12))), end) << to->strategy;
    EXPECT_TRUE(kept[20][kOptimizerFile] == ring[20][kOptimizerFile]) << to->strategy;
  }
  // Other strategies, other numbers of ranks and a single one load it, too.
  KeptSteps kept;
  options.strategy = "ps-sync";
  (void)WeightsOf(RunKeeping(options, 2, SmallData(), kept, &own.at(12)));
  for (const int workers : {1, 3}) {
    EXPECT_EQ(RunKeeping(sharded, workers, SmallData(), kept, &own.at(12)).front().weights.size(),
              end.size());
  }
}

TEST_P(Shards, TheCostOfMicroBatchesIsPrinted) {
  if (GetParam().strategy == std::string("zero1")) GTEST_SKIP() << "reduces the gradient once";
  TrainingOptions options = GetParam().Of(SmallOptions("ring"));
  options.micro_batches = 3;
  options.steps = 1;
  std::vector<std::string> notes;
  (void)TrainRanks(options, 2, SmallData(), [&notes](Worker& worker) {
    if (worker.rank == 0) worker.on_note = [&notes](const std::string& note) { notes.push_back(note); };
  });
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0],
              Has(absl::StrCat(options.strategy, " with 3 micro-batches reduces each gradient 3 times"),
                  "MB a step instead of ring's"));
}

TEST_P(Shards, OfHybridsHaveTheBitsOfSumsWithinAndThenBetweenTheGroups) {
  for (auto [options, data] : {std::pair(SmallOptions("ring"), &SmallData()), {GptOfRing(), &SmallText()}}) {
    SCOPED_TRACE(options.model);
    options.steps = 5;
    options.evaluate = true;
    options.check_replicas = true;
    TrainingOptions two_levels = options;
    two_levels.strategy = "hierarchical:2";
    const auto expected = TrainRanks(two_levels, 4, *data), ranks = TrainRanks(Hybrid(options), 4, *data);
    for (size_t rank = 0; rank < 4; ++rank) {
      ExpectSameTraining(ranks[rank], expected[rank]);
    }
    EXPECT_EQ(ranks[0].result->curve.size(), 1u);
  }
}

TEST_P(Shards, OfHybridsWithMicroBatchesAndClippingAreCloseToARing) {
  TrainingOptions options = TinyGpt("ring");
  options.optimizer = "sgd";
  options.lr = 10;
  options.batch = 4;
  options.micro_batches = 3;
  options.clip_norm = 1e-3;
  const std::vector<float> ring = WeightsOf(TrainRanks(options, 4, SmallText()));
  for (const RankOutcome& rank : TrainRanks(Hybrid(options), 4, SmallText())) {
    EXPECT_LE(RelativeL2(rank.weights, ring), 1e-4);
  }
}

// Of the gradient G, with two ranks in two groups: halves of an all-reduce send G/2 each, the sum of a shard
// over the groups sends as much.
TEST_P(Shards, OfHybridsSendTheBytesOfTheoryAndKeepTheStateOfTheirGroup) {
  TrainingOptions options = Hybrid(SmallOptions("ring"));
  options.steps = 2;
  const auto ranks = TrainRanks(options, 4, SmallData());
  const RankResult& result = *ranks[0].result;
  const uint64_t gradient = GradientBytes(result);
  const uint64_t gathered =
      options.strategy == "fsdp" ? sizeof(float) * static_cast<uint64_t>(result.gathered_elements) : gradient;
  uint64_t sent = 0;
  for (const RankOutcome& rank : ranks) sent += rank.steps[1].payload_tx_bytes;
  EXPECT_EQ(sent, 4 * (gradient + gathered + gradient) / 2);
  options.dp_shard = 0;
  const RankResult pair = *TrainRanks(options, 2, SmallData())[0].result;
  EXPECT_EQ(result.memory.params_mb, pair.memory.params_mb);
  EXPECT_EQ(result.memory.grads_mb, pair.memory.grads_mb);
  EXPECT_EQ(result.memory.optimizer_mb, pair.memory.optimizer_mb);
  EXPECT_EQ(result.predicted_memory.optimizer_mb, pair.predicted_memory.optimizer_mb);
}

TEST_P(Shards, OfHybridsContinueTheirCheckpointsAndOthersDo) {
  TrainingOptions options = Hybrid(SmallOptions("ring"));
  options.optimizer = "momentum";
  options.steps = 8;
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 4;
  KeptSteps kept, rest;
  const std::vector<float> end = WeightsOf(RunKeeping(options, 4, SmallData(), kept));
  ASSERT_TRUE(kept.contains(4));
  EXPECT_EQ(WeightsOf(RunKeeping(options, 4, SmallData(), rest, &kept[4])), end);
  TrainingOptions ring = options;
  ring.strategy = "ring";
  ring.reshard = "forward";
  ring.dp_shard = 0;
  EXPECT_LE(RelativeL2(WeightsOf(RunKeeping(ring, 4, SmallData(), rest, &kept[4])), end), 1e-4);
  TrainingOptions all = options;
  all.dp_shard = 4;
  EXPECT_LE(RelativeL2(WeightsOf(RunKeeping(all, 4, SmallData(), rest, &kept[4])), end), 1e-4);
}

// Rank 1 waits for its shard's sum, rank 2 for the sum of its group.
TEST_P(Shards, ARankOfAHybridThatFailsEndsBothOfItsGroups) {
  const auto ranks = RunRanks(Hybrid(SmallOptions("ring")), 4, SmallData(), RunsOutOfSpace(3));
  EXPECT_THAT(ranks[3].result.status(), Fails(absl::StatusCode::kResourceExhausted, "no space left"));
  ASSERT_FALSE(ranks[0].result.ok());
  for (const int other : {1, 2}) {
    EXPECT_THAT(std::string(ranks[other].result.status().message()), Has("gave up", "no space left"));
  }
}

TEST(HybridSums, AreRoundedWithinAndBetweenTheGroups) {
  TrainingOptions options = SmallOptions("zero1");
  options.wire = "bfloat16";
  options.dp_shard = 2;
  const std::vector<float> hybrid = WeightsOf(TrainRanks(options, 4, SmallData()));
  options.dp_shard = 0;
  EXPECT_LE(RelativeL2(hybrid, WeightsOf(TrainRanks(options, 4, SmallData()))), .02);
  options.wire = "float32";
  EXPECT_NE(hybrid, WeightsOf(TrainRanks(options, 4, SmallData())));
}

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
