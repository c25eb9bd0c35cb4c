// Pipelines whose replicas have shards of gradients (zero2) or also of weights (fsdp), compared with ring.
// Ranks are threads.
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

const std::string kDivided = "zb-h1";  // divides the backward pass

struct ShardedPipeline {
  const char *strategy, *reshard, *program;

  // `ring` in a pipeline of two positions, without and with shards.
  TrainingOptions OfRing(TrainingOptions ring, int micro_batches) const {
    ring.strategy = "ring";
    ring.pp = 2;
    ring.program = program;
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
std::ostream& operator<<(std::ostream& out, const ShardedPipeline& way) {
  return out << way.strategy << " --reshard " << way.reshard << " " << way.program;
}

TrainingOptions CnnOfPipeline() {
  TrainingOptions options = SmallOptions("ring");
  options.model = "cnn";
  return options;
}

// With SGD: Adam would make large steps of those gradients that are only rounding errors.
TrainingOptions GptOfPipeline() {
  TrainingOptions options = TinyGpt("ring");
  options.optimizer = "sgd";
  options.lr = .1;
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

class ShardedPipelines : public testing::TestWithParam<ShardedPipeline> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, ShardedPipelines,
    testing::Values(ShardedPipeline{"zero2", "forward", "gpipe"}, ShardedPipeline{"zero2", "forward", "1f1b"},
                    ShardedPipeline{"zero2", "forward", "interleaved:2"},
                    ShardedPipeline{"zero2", "forward", "zb-h1"}, ShardedPipeline{"fsdp", "forward", "gpipe"},
                    ShardedPipeline{"fsdp", "forward", "1f1b"}, ShardedPipeline{"fsdp", "never", "1f1b"},
                    ShardedPipeline{"fsdp", "forward", "interleaved:2"},
                    ShardedPipeline{"fsdp", "forward", "zb-h1"}, ShardedPipeline{"fsdp", "never", "zb-h1"}));

// Of one micro-batch; several are added up in another order.
TEST_P(ShardedPipelines, TwoReplicasHaveTheBitsOfARing) {
  for (auto [model, data] : {std::pair{CnnOfPipeline(), &SmallData()},
                             {GptOfPipeline(), &SmallText()},
                             {TinyResNet("ring"), &SmallPictures()}}) {
    const bool of_rest = std::string(GetParam().program) != "1f1b" && GetParam().program != kDivided;
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

TEST_P(ShardedPipelines, MoreReplicasWithMicroBatchesAndClippingAreCloseToARing) {
  for (const auto& [replicas, micro_batches, clip_norm] : {std::tuple{2, 4, 1e-3}, {3, 3, 0.}}) {
    for (auto [model, data] : {std::pair{CnnOfPipeline(), &SmallData()}, {GptOfPipeline(), &SmallText()}}) {
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

// Of the last step some micro-batches are short or empty, and the two replicas have different numbers of
// samples.
TEST_P(ShardedPipelines, CountEverySampleOnceInAShortLastBatch) {
  const DataSplits data = MakeSyntheticData({.height = 8, .width = 8, .train = 33, .test = 10}, /*seed=*/5);
  TrainingOptions options = GetParam().OfRing(CnnOfPipeline(), /*micro_batches=*/3);
  options.drop_last = "false";
  options.steps = 0;
  options.epochs = 2;
  const std::vector<float> ring = WeightsOf(RunPipelines(options, 2, data));
  EXPECT_LE(RelativeL2(WeightsOf(RunPipelines(GetParam().Of(options), 2, data)), ring), 1e-4);
}

TEST_P(ShardedPipelines, OtherLayoutsContinueTheirCheckpointsAndTheyThose) {
  TrainingOptions ring = GetParam().OfRing(CnnOfPipeline(), /*micro_batches=*/1);
  ring.optimizer = "momentum";
  ring.checkpoint_dir = "kept";
  ring.checkpoint_every = 2;
  const TrainingOptions sharded = GetParam().Of(ring);
  TrainingOptions copies = ring;
  LeavePipelineOut(copies);
  KeptSteps of_ring, own, rest;
  const std::vector<float> end = WeightsOf(KeepReplicas(ring, 2, SmallData(), of_ring));
  EXPECT_EQ(WeightsOf(KeepReplicas(sharded, 2, SmallData(), own)), end);
  for (const int64_t step : {2, 4}) {
    ASSERT_TRUE(of_ring.contains(step) && own.contains(step));
    for (const char* file : {kModelFile, kOptimizerFile}) {
      EXPECT_TRUE(own[step].at(file) == of_ring[step].at(file)) << file << " of step " << step;
    }
  }
  EXPECT_EQ(WeightsOf(KeepReplicas(sharded, 2, SmallData(), rest, &of_ring[2])), end);
  EXPECT_EQ(WeightsOf(KeepReplicas(ring, 2, SmallData(), rest, &own[2])), end);
  EXPECT_EQ(WeightsOf(RunKeeping(copies, 2, SmallData(), rest, &own[2])), end);
  EXPECT_EQ(WeightsOf(RunKeeping(GetParam().Of(copies), 2, SmallData(), rest, &own[2])), end);
}

// A checkpoint has one of the copies of a tied tensor, so it continues with the bits of an uninterrupted run
// only if they are equal.
TEST_P(ShardedPipelines, CopiesOfATiedTensorStayEqual) {
  TrainingOptions options = GetParam().Of(GetParam().OfRing(GptOfPipeline(), /*micro_batches=*/2));
  options.cuts = CutsOf(options);
  ExpectToResumeWithTheSameBits(options, 3, SmallText());
}

// Units are then whole blocks, but of two replicas each element is the same sum, in the order of the
// micro-batches.
TEST_P(ShardedPipelines, ComputeBlocksAgainWithTheSameBits) {
  if (GetParam().program == kDivided) GTEST_SKIP() << "needs all activations";
  TrainingOptions options = GetParam().Of(GetParam().OfRing(GptOfPipeline(), /*micro_batches=*/3));
  options.cuts = CutsOf(options);
  const std::vector<float> end = WeightsOf(RunPipelines(options, 2, SmallText()));
  options.recompute = true;
  EXPECT_EQ(WeightsOf(RunPipelines(options, 2, SmallText())), end);
}

TEST_P(ShardedPipelines, MemoryIsAsPredicted) {
  for (auto [model, data] : {std::pair{CnnOfPipeline(), &SmallData()}, {GptOfPipeline(), &SmallText()}}) {
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

TEST_P(ShardedPipelines, TheCostOfMicroBatchesIsPrintedOnce) {
  TrainingOptions options = GetParam().Of(GetParam().OfRing(CnnOfPipeline(), /*micro_batches=*/3));
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

// Without shards, D = 1 is `single`.
TEST(ShardedPipelineOfOneReplica, HasTheBitsOfOneRank) {
  for (const char* strategy : {"zero2", "fsdp"}) {
    const ShardedPipeline way{strategy, "forward", "1f1b"};
    TrainingOptions options = way.Of(way.OfRing(CnnOfPipeline(), /*micro_batches=*/3));
    const std::vector<float> one = OneProcess(options, 1, SmallData()).weights;
    EXPECT_EQ(WeightsOf(RunPipelines(options, 1, SmallData())), one);
  }
}

TEST(ShardedPipelineOfTwoReplicas, HasTheSameBitsWithOneCopyStream) {
  for (const char* program : {"1f1b", "interleaved:2"}) {
    SCOPED_TRACE(program);
    const ShardedPipeline way{"fsdp", "forward", program};
    TrainingOptions options = way.Of(way.OfRing(CnnOfPipeline(), /*micro_batches=*/4));
    const std::vector<float> weights = WeightsOf(RunPipelines(options, 2, SmallData()));
    options.copy_streams = 1;
    EXPECT_EQ(WeightsOf(RunPipelines(options, 2, SmallData())), weights);
  }
}

// Two copies of the state, of two replicas each.
TEST(ShardedPipelineOfTwoCopies, IsCloseToARing) {
  for (const char* strategy : {"zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    const ShardedPipeline way{strategy, "forward", "1f1b"};
    const TrainingOptions ring = way.OfRing(GptOfPipeline(), /*micro_batches=*/2);
    TrainingOptions options = way.Of(ring);
    options.dp_shard = 2;
    const auto ranks = RunPipelines(options, 4, SmallText());
    ExpectEqualReplicas(ranks);
    EXPECT_LE(RelativeL2(WeightsOf(ranks), WeightsOf(RunPipelines(ring, 4, SmallText()))), 1e-4);
  }
}

TEST(ShardedPipelineBytes, WeightsAreGatheredForEachMicroBatchUnlessTheyStay) {
  const ShardedPipeline forward{"fsdp", "forward", "1f1b"}, never{"fsdp", "never", "1f1b"};
  const auto gathered = [](const ShardedPipeline& way, int micro_batches, std::vector<int64_t>& units) {
    std::vector<int64_t> of_ranks;
    TrainingOptions options = way.Of(way.OfRing(CnnOfPipeline(), micro_batches));
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

}  // namespace
}  // namespace psring
