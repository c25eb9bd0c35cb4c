#include "tests/trainer/divided_training.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/ops/ops.h"
#include "tests/has.h"
#include "tests/trainer/kept_training.h"
#include "trainer/data/sources.h"
#include "trainer/models/replayed_model.h"
#include "trainer/programs/mesh.h"

namespace psring {

TrainingOptions GptOfFourHeads(const std::string& strategy) {
  TrainingOptions options = TinyGpt(strategy);
  options.heads = 4;
  options.optimizer = "sgd";
  options.lr = .1;
  options.batch = 4;
  return options;
}

void ClipEveryStep(TrainingOptions& options) {
  options.clip_norm = 1e-3;
  options.lr = 10;
}

std::string EvenCuts(const TrainingOptions& options, size_t stages) {
  const auto ops = MakeOneDnnOps(/*threads=*/1);
  const std::vector<size_t> points = (*ModelOf(options)->make(SmallText().train.spec(), *ops))->CutPoints();
  std::string cuts;
  for (size_t stage = 1; stage < stages; ++stage) {
    absl::StrAppend(&cuts, stage > 1 ? "," : "", points[stage * points.size() / stages]);
  }
  return cuts;
}

void ExpectNoTimeCountedTwice(const StepRecord& step) {
  EXPECT_GT(step.compute_ms, 0);
  EXPECT_GE(step.bubble_ms, 0);
  EXPECT_LE(step.compute_ms + step.bubble_ms + step.exposed_comm_ms, step.step_ms * (1 + 1e-9));
}

void ExpectWeightsOfOneRank(const TrainingOptions& options, int replicas, double tolerance,
                            const DataSplits& data) {
  const RankOutcome& expected = OneProcess(options, replicas, data);
  const std::vector<RankOutcome> ranks = RunPipelines(options, replicas, data);
  const int workers = replicas * ReplicaRanks(options);
  ASSERT_EQ(ranks.size(), static_cast<size_t>(workers));
  const Mesh mesh = Mesh::Create(workers, options.pp, options.rank_order, options.tp, options.cp).value();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const RankOutcome& outcome = ranks[rank];
    ASSERT_TRUE(outcome.result.ok()) << outcome.result.status();
    EXPECT_EQ(outcome.result->rank, static_cast<int>(rank));
    EXPECT_EQ(outcome.result->world_size, workers);
    EXPECT_EQ(outcome.result->parameters, expected.result->parameters);
    EXPECT_EQ(outcome.result->weights_hash, ranks[0].result->weights_hash);
    if (tolerance == 0) {
      EXPECT_EQ(outcome.weights, expected.weights);
      EXPECT_EQ(outcome.result->weights_hash, expected.result->weights_hash);
    } else {
      EXPECT_LE(RelativeL2(outcome.weights, expected.weights), tolerance);
    }
    ASSERT_EQ(outcome.steps.size(), expected.steps.size());
    const MeshPlace place = mesh.PlaceOf(static_cast<int>(rank));
    const bool counts = place.position == 0 && place.share == 0 && place.segment == 0;
    for (size_t step = 0; step < outcome.steps.size(); ++step) {
      const StepRecord &own = outcome.steps[step], &one = expected.steps[step];
      EXPECT_EQ(own.samples, counts ? one.samples / replicas : 0);
      EXPECT_EQ(own.rank, static_cast<int>(rank));
      EXPECT_EQ(own.weights_hash, ranks[0].steps[step].weights_hash);
      if (step > 0 && !own.weights_hash.empty()) {
        EXPECT_NE(own.weights_hash, outcome.steps[step - 1].weights_hash);
      }
      ExpectNoTimeCountedTwice(own);
      if (options.tp * options.cp > 1) {
        EXPECT_GT(own.exposed_comm_ms, 0);
      }
      if (replicas > 1) continue;  // another mean
      EXPECT_NEAR(own.loss, one.loss, (options.precision == "float32" ? 1e-5 : 1e-2) * one.loss);
    }
    if (!options.evaluate || place.replica > 0 || place.segment > 0) continue;
    const bool same_bits = tolerance < 1e-5;  // but for a tied tensor
    ASSERT_EQ(outcome.result->curve.size(), expected.result->curve.size());
    for (size_t point = 0; point < expected.result->curve.size(); ++point) {
      const CurvePoint &own = outcome.result->curve[point], &one = expected.result->curve[point];
      EXPECT_NEAR(own.test_loss, one.test_loss, 1e-4 * one.test_loss);
      EXPECT_NEAR(own.test_accuracy, one.test_accuracy, same_bits ? tolerance : .01);
      if (same_bits) {
        EXPECT_NEAR(own.train_loss, one.train_loss, 1e-4 * one.train_loss);
      }
      EXPECT_EQ(own.samples, one.samples);
    }
  }
}

void ExpectWeightsOfOneRankInAShortLastBatch(TrainingOptions options) {
  std::string text;
  while (text.size() < 450) absl::StrAppend(&text, "one fish, two fish, red fish ", text.size() % 7, "\n");
  const DataSplits data =
      FromText(text.substr(0, 450), [](const std::string& path) { return ReadText(path, 8); });
  ASSERT_EQ(data.train.count(), 55);
  options.drop_last = "false";
  options.steps = 0;
  options.epochs = 2;
  options.micro_batches = 3;
  ExpectWeightsOfOneRank(options, 1, 1e-4, data);
}

void ExpectGradientOfOneRank(TrainingOptions options) {
  options.steps = 1;
  options.lr = 1;
  const auto expected = ChangesOfTensors(options, OneProcess(options, 1, SmallText()).weights);
  const auto own = ChangesOfTensors(options, WeightsOf(RunPipelines(options, 1, SmallText())));
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_LE(RelativeL2(own[t].second, expected[t].second), 1e-3) << own[t].first;
  }
}

void ExpectToResumeWithTheSameBits(TrainingOptions options, int replicas, const DataSplits& data) {
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 2;
  KeptSteps kept, rest;
  const std::vector<float> end = WeightsOf(KeepReplicas(options, replicas, data, kept));
  ASSERT_TRUE(kept.contains(2));
  EXPECT_EQ(WeightsOf(KeepReplicas(options, replicas, data, rest, &kept[2])), end);
}

void ExpectAFailedRankToEndTheOthers(const TrainingOptions& options) {
  const auto ranks = RunPipelines(options, 1, SmallText(), RunsOutOfSpace(1));
  EXPECT_THAT(ranks[1].result.status(), Fails(absl::StatusCode::kResourceExhausted, "no space left"));
  for (const int other : {0, 2, 3}) EXPECT_FALSE(ranks[other].result.ok());
}

std::vector<std::pair<std::string, std::vector<float>>> ChangesOfTensors(const TrainingOptions& options,
                                                                         const std::vector<float>& weights) {
  const auto ops = MakeOneDnnOps(/*threads=*/1);
  const auto whole = *ModelOf(options)->make(SmallText().train.spec(), *ops);
  const std::vector<float> initial = whole->InitialWeights(options.seed);
  std::vector<std::pair<std::string, std::vector<float>>> all;
  for (const Tensor& tensor : whole->parameters().tensors()) {
    std::vector<float>& change = all.emplace_back(tensor.name, std::vector<float>()).second;
    for (size_t i = tensor.first; i < tensor.first + tensor.count; ++i) {
      change.push_back(weights[i] - initial[i]);
    }
  }
  return all;
}

}  // namespace psring
