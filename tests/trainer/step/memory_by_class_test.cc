// What ranks allocate by class, as counted by hand and as predicted before the run. Ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/cluster.h"

namespace psring {
namespace {

constexpr double kBytesPerMb = 1 << 20;

// mlp-small on pictures of 8 x 8: three layers, whose tensors begin at multiples of 16 elements.
constexpr size_t kFirstLayer = 64 * 300 + 304, kOtherLayers = 300 * 100 + 112 + 1008 + 16;
constexpr size_t kAllLayers = kFirstLayer + kOtherLayers;
// Evaluation has batches of 128 samples, so the memory is for as many. Images, labels and the score.
constexpr size_t kBatch = 128 * 4 * (64 + 1) + 16;
// An output and its gradient of the hidden layers; the last output's gradient is in its place.
constexpr size_t kHidden1 = 128 * 4 * 300, kHidden2 = 128 * 4 * 100, kOutput = 128 * 4 * 10;
constexpr size_t kActivations = 2 * kHidden1 + 2 * kHidden2 + kOutput + kBatch;

struct Bytes {
  size_t params, grads, optimizer, activations;
};

void ExpectMemory(const MemoryFigures& memory, const Bytes& bytes) {
  EXPECT_EQ(memory.params_mb * kBytesPerMb, bytes.params);
  EXPECT_EQ(memory.grads_mb * kBytesPerMb, bytes.grads);
  EXPECT_EQ(memory.optimizer_mb * kBytesPerMb, bytes.optimizer);
  EXPECT_EQ(memory.activations_mb * kBytesPerMb, bytes.activations);
}

void ExpectPredicted(const std::vector<RankOutcome>& ranks) {
  for (const RankOutcome& rank : ranks) {
    ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    const MemoryFigures &own = rank.result->memory, &predicted = rank.result->predicted_memory;
    EXPECT_GT(own.total_mb(), 0);
    EXPECT_EQ(predicted.params_mb, own.params_mb);
    EXPECT_EQ(predicted.grads_mb, own.grads_mb);
    EXPECT_NEAR(predicted.optimizer_mb, own.optimizer_mb, 1e-3) << "shards of buckets are rounded up";
    EXPECT_EQ(predicted.activations_mb, own.activations_mb);
  }
}

TrainingOptions FourSteps(TrainingOptions options, const std::string& optimizer = "adam") {
  options.optimizer = optimizer;
  options.steps = 4;
  return options;
}

TEST(MemoryByClass, OfOneProcessIsThatOfTheLayers) {
  const auto ranks = TrainRanks(FourSteps(SmallOptions("single")), 1, SmallData());
  ExpectMemory(ranks[0].result->memory, {4 * kAllLayers, 4 * kAllLayers, 2 * 4 * kAllLayers, kActivations});
  ExpectPredicted(ranks);
}

TEST(MemoryByClass, SeveralMicroBatchesNeedASecondGradient) {
  TrainingOptions options = FourSteps(SmallOptions("single"), "momentum");
  options.micro_batches = 3;
  const auto ranks = TrainRanks(options, 1, SmallData());
  ExpectMemory(ranks[0].result->memory, {4 * kAllLayers, 2 * 4 * kAllLayers, 4 * kAllLayers, kActivations});
  ExpectPredicted(ranks);
}

TEST(MemoryByClass, EveryRankOfARingHasAllButZero1HasAShardOfTheOptimizer) {
  for (const auto& [strategy, shards] : {std::pair("ring", 1), {"zero1", 2}}) {
    SCOPED_TRACE(strategy);
    const auto ranks = TrainRanks(FourSteps(SmallOptions(strategy)), 2, SmallData());
    for (const RankOutcome& rank : ranks) {
      ExpectMemory(rank.result->memory,
                   {4 * kAllLayers, 4 * kAllLayers, 2 * 4 * kAllLayers / shards, kActivations});
    }
    ExpectPredicted(ranks);
  }
}

// Of the three layers, which are a unit each, the first and the last use one block, the second another.
TEST(MemoryByClass, ShardsHaveBlocksForTheUnitsInFlight) {
  constexpr size_t kLastLayer = 1008 + 16, kSecondLayer = kOtherLayers - kLastLayer;
  constexpr size_t kShards = kAllLayers / 2, kSpace = (kShards + 15) / 16 * 16;
  constexpr size_t kTwoBlocks = kSpace + kFirstLayer + kSecondLayer;
  for (const auto& [strategy, params] : {std::pair("zero2", kAllLayers), {"fsdp", kTwoBlocks}}) {
    SCOPED_TRACE(strategy);
    TrainingOptions options = FourSteps(SmallOptions(strategy));
    options.micro_batches = 2;
    const auto ranks = TrainRanks(options, 2, SmallData());
    for (const RankOutcome& rank : ranks) {
      ExpectMemory(rank.result->memory, {4 * params, 4 * kTwoBlocks, 2 * 4 * kShards, kActivations});
    }
    ExpectPredicted(ranks);
  }
  TrainingOptions gpt = FourSteps(TinyGpt("fsdp"), "adamw");
  ExpectPredicted(TrainRanks(gpt, 3, SmallText()));
  gpt.reshard = "never";
  ExpectPredicted(TrainRanks(gpt, 3, SmallText()));
}

// Rajbhandari et al. 2020: with Adam 16 bytes per parameter, of which fsdp keeps 16/N, and what is complete:
// weights and gradients of two units and of the embedding, which the first and the last layer use.
TEST(MemoryByClass, FsdpKeepsItsShardsAndTheUnitsInFlight) {
  TrainingOptions options = FourSteps(TinyGpt("fsdp"), "adamw");
  options.layers = 6;
  const auto ranks = TrainRanks(options, 4, SmallText());
  std::vector<int64_t> units = ranks[0].result->bucket_elements;  // backward's order
  const auto tied = static_cast<size_t>(units.back());
  size_t all = tied, turns[2] = {0, 0};
  units.pop_back();
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const auto elements = static_cast<size_t>(units[unit]);
    all += elements;
    turns[unit % 2] = std::max(turns[unit % 2], elements);
  }
  ASSERT_EQ(units.size(), 13u) << "twelve halves of blocks, and the last normalization";
  const size_t shards = all / 4, space = (shards + 15) / 16 * 16;
  const size_t activations = static_cast<size_t>(ranks[0].result->memory.activations_mb * kBytesPerMb);
  for (const RankOutcome& rank : ranks) {
    const size_t in_flight = 4 * (space + turns[0] + turns[1] + tied);
    ExpectMemory(rank.result->memory, {in_flight, in_flight, 4 * 2 * shards, activations});
  }
  ExpectPredicted(ranks);
  options.strategy = "ring";
  ExpectMemory(TrainRanks(options, 4, SmallText())[3].result->memory,
               {4 * all, 4 * all, 4 * 2 * all, activations});
}

TEST(MemoryByClass, SharesOfMatricesAreShardedToo) {
  for (const char* strategy : {"zero2", "fsdp"}) {
    TrainingOptions options = FourSteps(TinyGpt(strategy), "adamw");
    const RankResult whole = *TrainRanks(options, 2, SmallText())[0].result;
    options.tp = 2;
    const auto ranks = RunPipelines(options, 2, SmallText());
    ExpectPredicted(ranks);
    for (const RankOutcome& rank : ranks) {
      EXPECT_LT(rank.result->memory.params_mb, .65 * whole.memory.params_mb);
      EXPECT_LT(rank.result->memory.grads_mb, .65 * whole.memory.grads_mb);
      EXPECT_LT(rank.result->memory.optimizer_mb, .65 * whole.memory.optimizer_mb);
    }
  }
}

TEST(MemoryByClass, OfAWorkerWithServersHasNoOptimizer) {
  const auto ranks = TrainRanks(FourSteps(SmallOptions("ps-sync")), 2, SmallData());
  ExpectMemory(ranks[1].result->memory, {4 * kAllLayers, 4 * kAllLayers, 0, kActivations});
  ExpectPredicted(ranks);
}

TEST(MemoryByClass, AStageHasItsLayersAndEveryMicroBatchInFlight) {
  TrainingOptions options = FourSteps(SmallOptions("single"));
  options.pp = 2;
  options.cuts = "1";
  options.micro_batches = 4;
  const auto ranks = RunPipelines(options, 1, SmallData());
  ExpectPredicted(ranks);
  // 1f1b: two micro-batches are in flight on the first stage. Its output has a gradient of its own.
  ExpectMemory(ranks[0].result->memory,
               {4 * kFirstLayer, 2 * 4 * kFirstLayer, 2 * 4 * kFirstLayer, 2 * (2 * kHidden1 + kBatch)});
  const MemoryFigures& last = ranks[1].result->memory;
  EXPECT_EQ(last.params_mb * kBytesPerMb, 4 * kOtherLayers);
  EXPECT_EQ(last.optimizer_mb * kBytesPerMb, 2 * 4 * kOtherLayers);
  // Its input and the gradient of it; a message may arrive while a micro-batch is computed.
  const double slots = last.activations_mb * kBytesPerMb / kActivations;
  EXPECT_GE(slots, 1);
  EXPECT_LE(slots, 2);
  EXPECT_EQ(slots, std::floor(slots));
}

// Two micro-batches in flight read two versions of the first stage's weights; each has an update of its own.
TEST(MemoryByClass, AStageWithoutAFlushKeepsVersionsOfItsWeights) {
  TrainingOptions options = FourSteps(SmallOptions("single"));
  options.pp = 2;
  options.cuts = "1";
  options.micro_batches = 4;
  options.program = "pipedream";
  const auto ranks = RunPipelines(options, 1, SmallData());
  ExpectPredicted(ranks);
  ExpectMemory(ranks[0].result->memory,
               {2 * 4 * kFirstLayer, 4 * kFirstLayer, 2 * 4 * kFirstLayer, 2 * (2 * kHidden1 + kBatch)});
  EXPECT_EQ(ranks[1].result->memory.params_mb * kBytesPerMb, 4 * kOtherLayers);
  options.program = "pipedream-2bw";
  const auto buffered = RunPipelines(options, 1, SmallData());
  ExpectPredicted(buffered);
  EXPECT_EQ(buffered[1].result->memory.params_mb * kBytesPerMb, 2 * 4 * kOtherLayers);
  EXPECT_EQ(buffered[1].result->memory.grads_mb * kBytesPerMb, 2 * 4 * kOtherLayers);
}

TEST(MemoryByClass, IsPredictedWithStatisticsRecomputingAndSeveralStages) {
  ExpectPredicted(TrainRanks(FourSteps(TinyResNet("ring")), 2, SmallPictures()));
  TrainingOptions gpt = FourSteps(TinyGpt("zero1"), "adamw");
  gpt.recompute = true;
  ExpectPredicted(TrainRanks(gpt, 3, SmallText()));
  gpt.strategy = "single";
  gpt.pp = 2;
  gpt.batch = 4;
  gpt.micro_batches = 4;
  gpt.program = "interleaved:2";
  ExpectPredicted(RunPipelines(gpt, 1, SmallText()));
  gpt.recompute = false;
  gpt.program = "zb-h1";
  ExpectPredicted(RunPipelines(gpt, 1, SmallText()));
}

TEST(MemoryByClass, IsUnknownWithTablesAndReplicasInOneProcess) {
  TrainingOptions replicas = FourSteps(SmallOptions("data-parallel"));
  replicas.replicas = 2;
  for (const auto& ranks :
       {TrainRanks(replicas, 1, SmallData()), TrainRanks(TinyDlrm("ring"), 2, SmallClicks())}) {
    EXPECT_EQ(ranks[0].result->memory.total_mb(), 0);
    EXPECT_EQ(ranks[0].result->predicted_memory.total_mb(), 0);
  }
}

}  // namespace
}  // namespace psring
