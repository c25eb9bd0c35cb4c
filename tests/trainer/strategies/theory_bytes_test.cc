// What ranks count as sent against the formulas of experiments/costs/sharded_costs.h. Ranks are threads.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experiments/costs/sharded_costs.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/replayed_model.h"

namespace psring {
namespace {

constexpr int kSteps = 6;

// Of all ranks in the last step, when a pipeline shares no times of its messages any more.
uint64_t SentInAStep(const std::vector<RankOutcome>& ranks) {
  uint64_t sent = 0;
  for (const RankOutcome& rank : ranks) sent += rank.steps.at(kSteps - 1).payload_tx_bytes;
  return sent;
}

uint64_t PartInAStep(const std::vector<RankOutcome>& ranks, uint64_t StepRecord::*part) {
  uint64_t sent = 0;
  for (const RankOutcome& rank : ranks) sent += rank.steps.at(kSteps - 1).*part;
  return sent;
}

TrainingOptions Short(TrainingOptions options, int micro_batches) {
  options.steps = kSteps;
  options.micro_batches = micro_batches;
  return options;
}

TEST(TheoryOfBytes, AStepOfShardsSendsItsPartOfTheGradientAndOfTheWeights) {
  for (const StrategyRow& row : ShardingStrategies()) {
    for (const int ranks : {2, 4}) {
      for (const int micro_batches : {1, 3}) {
        for (const char* reshard : {"forward", "never"}) {
          if (!row.shards_weights && reshard != std::string("forward")) continue;
          SCOPED_TRACE(absl::StrCat(row.name, " x ", ranks, ", ", micro_batches, ", ", reshard));
          TrainingOptions options = Short(SmallOptions(row.name), micro_batches);
          options.reshard = reshard;
          const auto outcomes = TrainRanks(options, ranks, SmallData());
          const std::vector<int64_t>& buckets = outcomes[0].result->bucket_elements;
          const int64_t elements = std::accumulate(buckets.begin(), buckets.end(), int64_t{0});
          // Every rank sends (N-1)/N of the elements in each of two halves.
          const bool reshards = options.reshard == "forward";
          double expected =
              2. * (ranks - 1) * static_cast<double>(elements) * row.SentPart(1, micro_batches, reshards);
          if (row.shards_weights && reshards) {
            // The last unit, whose gradient is complete first, stays from forward to backward, and the first
            // one until the next micro-batch.
            expected -= (ranks - 1.) * static_cast<double>(micro_batches * buckets.front() +
                                                           (micro_batches - 1) * buckets.back());
          }
          // What ranks do not divide is on each of them.
          double undivided = 0;
          for (const int64_t bucket : buckets)
            undivided += 2. * micro_batches * static_cast<double>(bucket % ranks);
          EXPECT_NEAR(static_cast<double>(SentInAStep(outcomes)), 4 * expected, 4 * ranks * undivided);
        }
      }
    }
  }
}

// Attention and MLP of a block each have a sum of activations in forward and in backward; so have the
// embedding and the last matrix. The loss needs the highest logit and three sums of every token.
TEST(TheoryOfBytes, AStepOfDividedMatricesSumsActivations) {
  const int context = SmallText().train.spec().labels;
  for (const int ranks : {2, 4}) {
    for (const int micro_batches : {1, 3}) {
      for (const int layers : {1, 2}) {
        SCOPED_TRACE(absl::StrCat(ranks, ", ", micro_batches, ", ", layers));
        TrainingOptions options = Short(TinyGpt("single"), micro_batches);
        options.heads = 4;
        options.layers = layers;
        options.tp = ranks;
        const auto outcomes = RunPipelines(options, 1, SmallText());
        for (const RankOutcome& rank : outcomes) ASSERT_TRUE(rank.result.ok()) << rank.result.status();
        const int tokens = options.batch * micro_batches * context;
        const int sums = kAllReducesPerLayer * layers + 2;
        EXPECT_EQ(PartInAStep(outcomes, &StepRecord::tensor_tx_bytes), SentInAStep(outcomes));
        EXPECT_EQ(SentInAStep(outcomes), 4 * 2 * (ranks - 1) * tokens * (sums * options.width + 4));
      }
    }
  }
}

// One activation and one gradient of it cross each boundary per micro-batch; the rest of a step, such as the
// loss for all ranks, does not depend on their number.
TEST(TheoryOfBytes, AStepOfStagesSendsEveryBoundaryTwicePerMicroBatch) {
  TrainingOptions options = Short(SmallOptions("single"), 2);
  options.pp = 3;
  options.cuts = "1,2";
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  const auto model = ModelOf(options)->make(SmallData().train.spec(), *ops).value();
  const size_t boundaries = model->BoundaryElements(1) + model->BoundaryElements(2);
  EXPECT_EQ(boundaries, 300 + 100);
  for (const char* program : {"gpipe", "1f1b"}) {
    options.program = program;
    options.micro_batches = 2;
    const uint64_t two = SentInAStep(RunPipelines(options, 1, SmallData()));
    options.micro_batches = 5;
    const uint64_t five = SentInAStep(RunPipelines(options, 1, SmallData()));
    EXPECT_EQ(five - two, 3 * 2 * 4 * boundaries * options.batch) << program;
    EXPECT_LT(two - 2 * 2 * 4 * boundaries * options.batch, 1000) << program;
  }
}

// The ends of a gpt send each other their gradients of the embedding, without a flush in every update.
TEST(TheoryOfBytes, StagesAddUpTheTensorThatTheyShare) {
  TrainingOptions options = Short(TinyGpt("single"), 3);
  options.layers = 2;
  options.pp = 2;
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  const auto model = ModelOf(options)->make(SmallText().train.spec(), *ops).value();
  const size_t cut = model->CutPoints()[model->CutPoints().size() / 2];
  options.cuts = absl::StrCat(cut);
  for (const auto& [program, updates] : {std::pair{"1f1b", 1}, {"pipedream", 3}, {"pipedream-2bw", 2}}) {
    options.program = program;
    const auto ranks = RunPipelines(options, 1, SmallText());
    for (const RankOutcome& rank : ranks) ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    const uint64_t tied = 4 * ranks[0].result->tied_elements;
    EXPECT_GT(tied, 0u);
    EXPECT_EQ(ranks[1].result->tied_elements, ranks[0].result->tied_elements);
    const uint64_t sent = 2 * (3 * 4 * model->BoundaryElements(cut) * options.batch + updates * tied);
    EXPECT_GE(SentInAStep(ranks), sent) << program;
    EXPECT_LT(SentInAStep(ranks) - sent, 1000) << program << ": the loss for all ranks";
  }
}

// With two replicas of two stages, each link carries its own part of the step.
TEST(TheoryOfBytes, AStepsLinksAreCountedApart) {
  TrainingOptions options = Short(SmallOptions("ring"), 2);
  options.pp = 2;
  options.cuts = "1";
  const auto ranks = RunPipelines(options, 2, SmallData());
  const uint64_t stages = PartInAStep(ranks, &StepRecord::stage_tx_bytes);
  const uint64_t messages = 2 * 2 * 2 * 4 * 300 * options.batch;  // of two replicas
  EXPECT_GE(stages, messages);
  EXPECT_LT(stages - messages, 1000) << "the loss for all ranks";
  uint64_t gradients = 0;  // by two replicas: of each of the two parts once in total
  for (const int rank : {0, 3}) {
    for (const int64_t elements : ranks[rank].result->bucket_elements) gradients += 2 * 4 * elements;
  }
  EXPECT_EQ(SentInAStep(ranks) - stages, gradients);
  EXPECT_EQ(PartInAStep(ranks, &StepRecord::tensor_tx_bytes), 0);
  EXPECT_EQ(PartInAStep(ranks, &StepRecord::sequence_tx_bytes), 0);
}

// Two ranks of a sequence send as much to the next stage as one that has all of it.
TEST(TheoryOfBytes, MessagesAreCountedApartFromExchangesOfSequences) {
  TrainingOptions options = TinyGpt("single");
  options.pp = 2;
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  const auto model = ModelOf(options)->make(SmallText().train.spec(), *ops).value();
  const size_t cut = model->CutPoints().at(model->CutPoints().size() / 2);
  options.cuts = absl::StrCat(cut);
  for (const int ranks : {1, 2}) {
    options.cp = ranks;
    options.strategy = ranks == 1 ? "single" : "ring";
    std::vector<double> stages, sequences;
    for (const int micro_batches : {2, 5}) {
      const auto outcomes = RunPipelines(Short(options, micro_batches), 1, SmallText());
      stages.push_back(PartInAStep(outcomes, &StepRecord::stage_tx_bytes));
      sequences.push_back(PartInAStep(outcomes, &StepRecord::sequence_tx_bytes));
    }
    const double messages = 3 * 2 * 4 * static_cast<double>(model->BoundaryElements(cut) * options.batch);
    EXPECT_NEAR(stages[1] - stages[0], messages, .01 * messages) << ranks;
    EXPECT_EQ(sequences[1] > sequences[0], ranks == 2);
  }
}

// Each position's two replicas send half of its elements in each half of an all-reduce.
TEST(TheoryOfBytes, AStepOfStagesInShardsReducesAndGathersThem) {
  for (const StrategyRow& row : ShardingStrategies()) {
    for (const int micro_batches : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(row.name, ", ", micro_batches));
      TrainingOptions options = Short(SmallOptions(row.name), micro_batches);
      options.pp = 2;
      options.cuts = "1";
      const auto ranks = RunPipelines(options, 2, SmallData());
      const int reductions = row.shards_gradients ? micro_batches : 1;
      int64_t halves = 0;
      for (const RankOutcome& rank : ranks) {
        const std::vector<int64_t>& buckets = rank.result->bucket_elements;
        const int64_t elements = std::accumulate(buckets.begin(), buckets.end(), int64_t{0});
        halves += reductions * elements + (row.shards_weights ? rank.result->gathered_elements : elements);
      }
      EXPECT_EQ(SentInAStep(ranks) - PartInAStep(ranks, &StepRecord::stage_tx_bytes), 4 * halves / 2);
    }
  }
}

}  // namespace
}  // namespace psring
