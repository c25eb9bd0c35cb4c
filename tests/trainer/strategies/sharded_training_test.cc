// Strategies that shard the optimizer state (zero1), also gradients (zero2), and also weights (fsdp),
// compared with ring: replicas of one rank and pipelines. Ranks are threads.
#include <gtest/gtest.h>

#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "tests/trainer/divided_training.h"
#include "tests/trainer/kept_training.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

constexpr char kDivided[] = "zb-h1";  // divides the backward pass

struct ShardedWay {
  std::string strategy, reshard;
  std::string program = "";  // of a pipeline of two positions; empty: a replica has one rank

  bool has_pipeline() const { return !program.empty(); }
  // `ring` without and with shards.
  TrainingOptions OfRing(TrainingOptions ring, int micro_batches) const {
    if (has_pipeline()) {
      ring.pp = 2;
      ring.program = program;
    }
    ring.strategy = "ring";
    ring.micro_batches = micro_batches;
    ring.batch = 4;
    ring.steps = 4;
    ring.check_replicas = true;
    return ring;
  }
  TrainingOptions Of(TrainingOptions ring) const {
    ring.strategy = strategy;
    ring.reshard = reshard;
    return ring;
  }
};
std::ostream& operator<<(std::ostream& out, const ShardedWay& way) {
  return out << way.strategy << " --reshard " << way.reshard << " " << way.program;
}

TrainingOptions Cnn() {
  TrainingOptions options = SmallOptions("ring");
  options.model = "cnn";
  return options;
}

// With SGD: Adam would make large steps of those gradients that are only rounding errors.
TrainingOptions Gpt(const char* optimizer = "sgd", double lr = .1) {
  TrainingOptions options = TinyGpt("ring");
  options.optimizer = optimizer;
  options.lr = lr;
  options.dropout = .1;
  return options;
}

// Fixed, so that runs do not differ in what is measured to balance stages.
std::string CutsOf(const TrainingOptions& gpt) {
  return EvenCuts(gpt, gpt.program == "interleaved:2" ? 4 : 2);
}

// All ranks have the same weights after each of 4 steps.
void ExpectEqualReplicas(const std::vector<RankOutcome>& ranks) {
  std::set<std::string> hashes;
  for (const RankOutcome& rank : ranks) {
    ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    for (const StepRecord& step : rank.steps) {
      hashes.insert(step.weights_hash);
      ExpectNoTimeCountedTwice(step);
    }
  }
  EXPECT_EQ(hashes.size(), 4u);
}

const std::vector<ShardedWay>& WaysOfRanks() {
  static const std::vector<ShardedWay> ways = {
      {"zero1", "forward"}, {"zero2", "forward"}, {"fsdp", "forward"}, {"fsdp", "never"}};
  return ways;
}
const std::vector<ShardedWay>& WaysOfPipelines() {
  static const std::vector<ShardedWay> ways = {{"zero2", "forward", "gpipe"},
                                               {"zero2", "forward", "1f1b"},
                                               {"zero2", "forward", "interleaved:2"},
                                               {"zero2", "forward", kDivided},
                                               {"fsdp", "forward", "gpipe"},
                                               {"fsdp", "forward", "1f1b"},
                                               {"fsdp", "never", "1f1b"},
                                               {"fsdp", "forward", "interleaved:2"},
                                               {"fsdp", "forward", kDivided},
                                               {"fsdp", "never", kDivided}};
  return ways;
}

// Of all ways.
class Shards : public testing::TestWithParam<ShardedWay> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Shards, testing::ValuesIn(WaysOfRanks()));
INSTANTIATE_TEST_SUITE_P(Pipelines, Shards, testing::ValuesIn(WaysOfPipelines()));

// Of one micro-batch; several are added up in another order.
TEST_P(Shards, TwoReplicasHaveTheBitsOfARing) {
  for (auto [model, data] :
       {std::pair{Cnn(), &SmallData()}, {Gpt(), &SmallText()}, {TinyResNet("ring"), &SmallPictures()}}) {
    const bool of_rest = GetParam().program == "gpipe" || GetParam().program == "interleaved:2";
    if (of_rest && model.model == "resnet18") continue;  // takes longest
    SCOPED_TRACE(model.model);
    TrainingOptions options = GetParam().OfRing(model, /*micro_batches=*/1);
    options.evaluate = true;
    options.eval_every = 2;
    const auto ring = RunPipelines(options, 2, *data), ranks = RunPipelines(GetParam().Of(options), 2, *data);
    ExpectEqualReplicas(ranks);
    for (size_t rank = 0; rank < ring.size(); ++rank) {
      ExpectSameTraining(ranks[rank], ring[rank]);
    }
    EXPECT_EQ(ring[0].result->curve.size(), 2u);
  }
}

TEST_P(Shards, MoreReplicasWithMicroBatchesAndClippingAreCloseToARing) {
  for (const auto& [replicas, micro_batches, clip_norm] : {std::tuple{2, 4, 1e-3}, {3, 3, 0.}}) {
    for (auto [model, data] : {std::pair{Cnn(), &SmallData()}, {Gpt(), &SmallText()}}) {
      SCOPED_TRACE(absl::StrCat(model.model, " ", replicas, " x ", micro_batches, ", ", clip_norm));
      TrainingOptions options = GetParam().OfRing(model, micro_batches);
      options.optimizer = "sgd";
      options.lr = clip_norm > 0 ? 10 : .1;
      options.clip_norm = clip_norm;
      const std::vector<float> ring = WeightsOf(RunPipelines(options, replicas, *data));
      const auto ranks = RunPipelines(GetParam().Of(options), replicas, *data);
      ExpectEqualReplicas(ranks);
      for (const RankOutcome& rank : ranks) EXPECT_LE(RelativeL2(rank.weights, ring), 1e-4);
    }
  }
}

TEST_P(Shards, OtherLayoutsContinueTheirCheckpointsAndTheyThose) {
  TrainingOptions ring = GetParam().OfRing(Cnn(), /*micro_batches=*/1);
  ring.optimizer = "adamw";
  ring.checkpoint_dir = "kept";
  ring.checkpoint_every = 2;
  const TrainingOptions sharded = GetParam().Of(ring);
  TrainingOptions copies = ring;
  LeavePipelineOut(copies);
  const TrainingOptions shards_of_ranks = GetParam().Of(copies);
  KeptSteps of_ring, own;
  const std::vector<float> end = WeightsOf(KeepReplicas(ring, 2, SmallData(), of_ring));
  EXPECT_EQ(WeightsOf(KeepReplicas(sharded, 2, SmallData(), own)), end);
  for (const int64_t step : {2, 4}) {
    ASSERT_TRUE(of_ring.contains(step) && own.contains(step));
    for (const char* file : {kModelFile, kOptimizerFile}) {
      EXPECT_TRUE(own[step].at(file) == of_ring[step].at(file)) << file << " of step " << step;
    }
  }
  for (const auto& [from, to] :
       {std::pair{&of_ring, &sharded}, {&own, &ring}, {&own, &copies}, {&own, &shards_of_ranks}}) {
    KeptSteps rest;
    EXPECT_EQ(WeightsOf(KeepReplicas(*to, 2, SmallData(), rest, &from->at(2))), end) << to->strategy;
    EXPECT_TRUE(rest[4].at(kOptimizerFile) == of_ring[4].at(kOptimizerFile)) << to->strategy;
  }
  // Other strategies, other numbers of ranks and a single one load it, too.
  KeptSteps rest;
  copies.strategy = "ps-sync";
  (void)WeightsOf(RunKeeping(copies, 2, SmallData(), rest, &own[2]));
  for (const int workers : {1, 3}) {
    EXPECT_EQ(RunKeeping(shards_of_ranks, workers, SmallData(), rest, &own[2]).front().weights.size(),
              end.size());
  }
}

TEST_P(Shards, TheCostOfMicroBatchesIsPrintedOnce) {
  if (GetParam().strategy == "zero1") GTEST_SKIP() << "reduces the gradient once";
  TrainingOptions options = GetParam().Of(GetParam().OfRing(Cnn(), /*micro_batches=*/3));
  std::vector<std::string> notes;
  (void)RunPipelines(options, 2, SmallData(), [&notes](Worker& worker) {
    if (worker.trace.rank() == 0) {
      worker.on_note = [&notes](const std::string& note) { notes.push_back(note); };
    } else {
      worker.on_note = [](const std::string& note) { ADD_FAILURE() << note; };
    }
  });
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0],
              Has(absl::StrCat(options.strategy, " with 3 micro-batches reduces each gradient 3 times"),
                  "MB a step instead of ring's"));
}

// Those of pipelines.
class ShardedPipelines : public Shards {};
INSTANTIATE_TEST_SUITE_P(Ways, ShardedPipelines, testing::ValuesIn(WaysOfPipelines()));

// Of the last step some micro-batches are short or empty, and the two replicas have different numbers of
// samples.
TEST_P(ShardedPipelines, CountEverySampleOnceInAShortLastBatch) {
  const DataSplits data = MakeSyntheticData({.height = 8, .width = 8, .train = 33, .test = 10}, /*seed=*/5);
  TrainingOptions options = GetParam().OfRing(Cnn(), /*micro_batches=*/3);
  options.drop_last = "false";
  options.steps = 0;
  options.epochs = 2;
  const std::vector<float> ring = WeightsOf(RunPipelines(options, 2, data));
  EXPECT_LE(RelativeL2(WeightsOf(RunPipelines(GetParam().Of(options), 2, data)), ring), 1e-4);
}

// A checkpoint has one of the copies of a tied tensor, so it continues with the bits of an uninterrupted run
// only if they are equal.
TEST_P(ShardedPipelines, CopiesOfATiedTensorStayEqual) {
  TrainingOptions options = GetParam().Of(GetParam().OfRing(Gpt(), /*micro_batches=*/2));
  options.cuts = CutsOf(options);
  ExpectToResumeWithTheSameBits(options, 3, SmallText());
}

// Units are then whole blocks, but of two replicas each element is the same sum, in the order of the
// micro-batches.
TEST_P(ShardedPipelines, ComputeBlocksAgainWithTheSameBits) {
  if (GetParam().program == kDivided) GTEST_SKIP() << "needs all activations";
  TrainingOptions options = GetParam().Of(GetParam().OfRing(Gpt(), /*micro_batches=*/3));
  options.cuts = CutsOf(options);
  const std::vector<float> end = WeightsOf(RunPipelines(options, 2, SmallText()));
  options.recompute = true;
  EXPECT_EQ(WeightsOf(RunPipelines(options, 2, SmallText())), end);
}

TEST_P(ShardedPipelines, MemoryIsAsPredicted) {
  for (auto [model, data] : {std::pair{Cnn(), &SmallData()}, {Gpt(), &SmallText()}}) {
    const auto ranks = RunPipelines(GetParam().Of(GetParam().OfRing(model, /*micro_batches=*/4)), 2, *data);
    for (const RankOutcome& rank : ranks) {
      ASSERT_TRUE(rank.result.ok()) << rank.result.status();
      const MemoryFigures &own = rank.result->memory, &predicted = rank.result->predicted_memory;
      EXPECT_EQ(predicted.params_mb, own.params_mb);
      EXPECT_EQ(predicted.grads_mb, own.grads_mb);
      EXPECT_EQ(predicted.activations_mb, own.activations_mb);
    }
  }
}

// Without shards, D = 1 is `single`.
TEST(ShardedPipelineOfOneReplica, HasTheBitsOfOneRank) {
  for (const char* strategy : {"zero2", "fsdp"}) {
    const ShardedWay way{strategy, "forward", "1f1b"};
    TrainingOptions options = way.Of(way.OfRing(Cnn(), /*micro_batches=*/3));
    const std::vector<float> one = OneProcess(options, 1, SmallData()).weights;
    EXPECT_EQ(WeightsOf(RunPipelines(options, 1, SmallData())), one);
  }
}

TEST(ShardedPipelineOfTwoReplicas, HasTheSameBitsWithOneCopyStream) {
  for (const char* program : {"1f1b", "interleaved:2"}) {
    SCOPED_TRACE(program);
    const ShardedWay way{"fsdp", "forward", program};
    TrainingOptions options = way.Of(way.OfRing(Cnn(), /*micro_batches=*/4));
    const std::vector<float> weights = WeightsOf(RunPipelines(options, 2, SmallData()));
    options.copy_streams = 1;
    EXPECT_EQ(WeightsOf(RunPipelines(options, 2, SmallData())), weights);
  }
}

// Two copies of the state, of two replicas each.
TEST(ShardedPipelineOfTwoCopies, IsCloseToARing) {
  for (const char* strategy : {"zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    const ShardedWay way{strategy, "forward", "1f1b"};
    const TrainingOptions ring = way.OfRing(Gpt(), /*micro_batches=*/2);
    TrainingOptions options = way.Of(ring);
    options.dp_shard = 2;
    const auto ranks = RunPipelines(options, 4, SmallText());
    ExpectEqualReplicas(ranks);
    EXPECT_LE(RelativeL2(WeightsOf(ranks), WeightsOf(RunPipelines(ring, 4, SmallText()))), 1e-4);
  }
}

TEST(ShardedPipelineBytes, WeightsAreGatheredForEachMicroBatchUnlessTheyStay) {
  const ShardedWay forward{"fsdp", "forward", "1f1b"}, never{"fsdp", "never", "1f1b"};
  const auto gathered = [](const ShardedWay& way, int micro_batches, std::vector<int64_t>& units) {
    std::vector<int64_t> of_ranks;
    TrainingOptions options = way.Of(way.OfRing(Cnn(), micro_batches));
    options.cuts = "1";
    for (const RankOutcome& rank : RunPipelines(options, 2, SmallData())) {
      of_ranks.push_back(rank.result->gathered_elements);
      const auto& own = rank.result->bucket_elements;
      units.push_back(std::accumulate(own.begin(), own.end(), int64_t{0}));
    }
    return of_ranks;
  };
  std::vector<int64_t> all, same;
  EXPECT_EQ(gathered(never, 4, all), all);
  const std::vector<int64_t> one = gathered(forward, 1, same), four = gathered(forward, 4, same);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_GE(one[rank], all[rank]);
    EXPECT_LE(one[rank], 2 * all[rank]);
    EXPECT_GE(four[rank], one[rank]);
    EXPECT_LE(four[rank], 8 * all[rank]);
  }
  // The last position computes each micro-batch forward and back: its last unit stays between the two.
  EXPECT_GT(four.back(), 2 * one.back());
}

// Those of ranks.
class ShardsOfRanks : public Shards {
 protected:
  // Each two ranks of four have one copy of the state. A sum of two has one order, so that of all is the one
  // of hierarchical:2, which first adds up within two ranks.
  static TrainingOptions Hybrid(const TrainingOptions& options) {
    TrainingOptions hybrid = GetParam().Of(options);
    hybrid.dp_shard = 2;
    return hybrid;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, ShardsOfRanks, testing::ValuesIn(WaysOfRanks()));

TEST_P(ShardsOfRanks, BlocksThatAreComputedAgainGiveTheSameBits) {
  TrainingOptions gpt = Gpt("adamw", /*lr=*/0);
  gpt.layers = 3;
  for (auto [options, data] : {std::pair(gpt, &SmallText()), {TinyResNet("ring"), &SmallPictures()}}) {
    SCOPED_TRACE(options.model);
    options.steps = 4;
    const std::vector<float> ring = WeightsOf(TrainRanks(options, 2, *data));
    options.recompute = true;
    EXPECT_EQ(WeightsOf(TrainRanks(GetParam().Of(options), 2, *data)), ring);
  }
}

TEST_P(ShardsOfRanks, OfHybridsHaveTheBitsOfSumsWithinAndThenBetweenTheGroups) {
  for (auto [options, data] :
       {std::pair(SmallOptions("ring"), &SmallData()), {Gpt("adamw", /*lr=*/0), &SmallText()}}) {
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

TEST_P(ShardsOfRanks, OfHybridsWithMicroBatchesAndClippingAreCloseToARing) {
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
TEST_P(ShardsOfRanks, OfHybridsSendTheBytesOfTheoryAndKeepTheStateOfTheirGroup) {
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

TEST_P(ShardsOfRanks, OfHybridsContinueTheirCheckpointsAndOthersDo) {
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
TEST_P(ShardsOfRanks, ARankOfAHybridThatFailsEndsBothOfItsGroups) {
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

}  // namespace
}  // namespace psring
