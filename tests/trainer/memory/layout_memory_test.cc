#include "trainer/memory/layout_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/options/training_options.h"
#include "tests/common/ops/reference_ops.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/evaluation.h"
#include "trainer/step/plan/training_plan.h"

namespace psring {
namespace {

class LayoutMemoryNeeded : public testing::Test {
 protected:
  MemoryQuestion QuestionOf(const TrainingOptions& options, int workers) {
    row_ = ModelOf(options).value();
    const SampleSpec& samples = SmallText().train.spec();
    const auto whole = row_.make(samples, *ops_).value();
    const int evaluated = EvaluationBatch(*whole, samples, options.batch, *device_).value();
    return {.row = row_,
            .samples = samples,
            .optimizer = optimizer_,
            .workers = workers,
            .max_batch = std::max(options.batch, evaluated),
            .ops = *ops_,
            .device = *device_};
  }
  MemoryNeed Most(const TrainingOptions& options, int workers) {
    return MostNeeded(options, *FindStrategy(options.strategy), QuestionOf(options, workers)).value();
  }
  std::vector<std::string> Fitting(const TrainingOptions& options, int workers, size_t bytes) {
    return LayoutsThatFit(options, QuestionOf(options, workers), bytes,
                          [&](const TrainingOptions& layout, const StrategyRow& strategy) {
                            return CheckLayout(layout, strategy, workers);
                          });
  }
  TrainingOptions AdamGpt(const std::string& strategy, int pp = 1, int tp = 1) {
    TrainingOptions options = TinyGpt(strategy);
    options.optimizer = "adam";
    options.steps = 1;
    options.pp = pp;
    options.tp = tp;
    if (pp == 1) return options;
    const std::vector<size_t> points =
        (*ModelOf(options)->make(SmallText().train.spec(), *ops_))->CutPoints();
    options.cuts = std::to_string(points[points.size() / 2]);
    return options;
  }

  static TrainingOptions OfSequences(TrainingOptions options) {
    options.cp = 2;
    return options;
  }
  static TrainingOptions OfTokens(TrainingOptions options) {
    options.sequence_parallel = true;
    return options;
  }
  static TrainingOptions Halved(TrainingOptions options) {
    options.wire = "bfloat16";
    return options;
  }

  double Sent(const TrainingOptions& options, int workers) {
    return SentInStep(options, *FindStrategy(options.strategy), QuestionOf(options, workers)).value();
  }
  // Beside the loss, of which a rank sends 16 bytes to each rank of its sequences, and at most as many to
  // those of its replica. In the first steps stages also send times.
  void ExpectSent(TrainingOptions options, int replicas) {
    SCOPED_TRACE(absl::StrJoin(TrainingArguments(options), " "));
    options.steps = 6;
    options.heads = 4;
    options.micro_batches = 3;
    options.batch = 4;
    const auto ranks = RunPipelines(options, replicas, SmallText());
    double counted = 0;
    for (const RankOutcome& rank : ranks) {
      ASSERT_TRUE(rank.result.ok()) << rank.result.status();
      counted += static_cast<double>(rank.steps.back().payload_tx_bytes) / static_cast<double>(ranks.size());
    }
    const double sent = Sent(options, static_cast<int>(ranks.size()));
    EXPECT_GT(sent, 1000);
    EXPECT_GE(counted, sent - 1e-6);
    EXPECT_LE(counted, sent + 16 * options.cp);
  }

  // Of --precision.
  std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  const OptimizerConfig optimizer_{.kind = OptimizerKind::kAdam};
  std::unique_ptr<Device> device_ = MakeCpuDevice();
  ModelRow row_;
};

TEST_F(LayoutMemoryNeeded, IsThatOfTheRankThatAllocatesMost) {
  const auto expect = [&](const TrainingOptions& options, int workers,
                          const std::vector<RankOutcome>& ranks) {
    double most = 0;
    for (const RankOutcome& rank : ranks) most = std::max(most, rank.result->predicted_memory.total_mb());
    // Shards of tensors that the ranks do not divide differ by some elements.
    EXPECT_NEAR(ByClass(Most(options, workers)).total_mb(), most, 1e-3 * most)
        << options.strategy << " " << options.pp << " " << options.tp;
  };
  for (const char* strategy : {"ring", "zero1", "zero2", "fsdp"}) {
    const TrainingOptions options = AdamGpt(strategy);
    expect(options, 2, TrainRanks(options, 2, SmallText()));
  }
  const auto expect_replicas = [&](const TrainingOptions& options) {
    expect(options, 2 * ReplicaRanks(options), RunPipelines(options, 2, SmallText()));
  };
  expect_replicas(OfTokens(AdamGpt("ring", 1, 2)));
  expect_replicas(AdamGpt("ring", 2));
  expect_replicas(AdamGpt("zero1", 1, 2));
  for (const char* strategy : {"ring", "fsdp"}) expect_replicas(OfSequences(AdamGpt(strategy)));
  // With memory for the sum of a tied tensor's gradient, and with zb-h1 for those of biases.
  for (const char* strategy : {"zero2", "fsdp"}) {
    for (const char* program : {"1f1b", "zb-h1"}) {
      TrainingOptions stages = AdamGpt(strategy, 2);
      stages.program = program;
      stages.micro_batches = 3;
      expect_replicas(stages);
    }
  }
}

TEST_F(LayoutMemoryNeeded, ShardsAndDividedModelsNeedLess) {
  const size_t copied = Most(AdamGpt("ring"), 4).total();
  size_t before = copied;
  for (const char* strategy : {"zero1", "fsdp"}) {
    const size_t now = Most(AdamGpt(strategy), 4).total();
    EXPECT_LT(now, before) << strategy;
    before = now;
  }
  EXPECT_LT(Most(AdamGpt("ring", 2), 4).total(), copied);
  EXPECT_LT(Most(AdamGpt("ring", 1, 2), 4).total(), copied);
  EXPECT_GT(Most(AdamGpt("fsdp"), 4).units, 0);
  EXPECT_EQ(Most(AdamGpt("zero1"), 4).units, 0);
}

TEST_F(LayoutMemoryNeeded, LayoutsThatFitKeepTheGlobalBatchAndTheLimit) {
  const TrainingOptions copied = AdamGpt("ring");
  const size_t all = Most(copied, 4).total();
  EXPECT_TRUE(Fitting(copied, 4, 0).empty());
  const std::vector<std::string> most = Fitting(copied, 4, all);
  ASSERT_EQ(most.size(), 3u) << "at most three are shown";
  const std::vector<std::string> fitting = Fitting(copied, 4, Most(AdamGpt("zero1"), 4).total());
  ASSERT_FALSE(fitting.empty());
  for (const std::string& layout : fitting) {
    EXPECT_THAT(layout, Has(" per worker, which sends "));
    const bool divides = layout.find("--pp") != std::string::npos || layout.find("--tp") != std::string::npos;
    EXPECT_EQ(divides, layout.find("--micro_batches") != std::string::npos) << layout;
  }
}

TEST_F(LayoutMemoryNeeded, LayoutsThatFitNameTheFlagsToOmit) {
  TrainingOptions cut = AdamGpt("ring", 2);
  cut.program = "gpipe";
  const std::vector<std::string> fitting = LayoutsThatFit(
      cut, QuestionOf(cut, 4), 2 * Most(cut, 4).total(),
      [](const TrainingOptions& layout, const StrategyRow& strategy) {
        return layout.pp == 1 && layout.tp == 2 ? CheckLayout(layout, strategy, 4) : absl::UnknownError("");
      });
  ASSERT_FALSE(fitting.empty());
  for (const std::string& layout : fitting)
    EXPECT_THAT(layout, Has("--pp 1 --tp 2 without --cuts without --program ("));
}

TEST_F(LayoutMemoryNeeded, LayoutsThatFitKeepTheRanksOfASequence) {
  const TrainingOptions copied = OfSequences(AdamGpt("ring"));
  const std::vector<std::string> shards = Fitting(copied, 2, Most(OfSequences(AdamGpt("zero1")), 2).total());
  ASSERT_FALSE(shards.empty());
  EXPECT_THAT(shards.front(), Has("--strategy zero1 ("));
  const std::vector<std::string> stages = Fitting(copied, 4, 2 * Most(copied, 4).total());
  EXPECT_TRUE(std::ranges::any_of(stages, [](const std::string& layout) {
    return layout.find("--pp 2") != std::string::npos || layout.find("--tp 2") != std::string::npos;
  })) << "two replicas become one of twice as many micro-batches";
  for (const std::string& layout : stages) {
    const bool divides = layout.find("--pp") != std::string::npos || layout.find("--tp") != std::string::npos;
    EXPECT_EQ(divides, layout.find("--micro_batches 2") != std::string::npos) << layout;
  }
}

TEST_F(LayoutMemoryNeeded, LayoutsThatFitDivideLongSequences) {
  TrainingOptions whole = AdamGpt("ring"), halves = OfSequences(whole);
  halves.micro_batches = 2;
  const auto fitting = [&](int context) {
    whole.context = halves.context = context;
    row_ = ModelOf(whole).value();
    const SampleSpec samples = OfPositions(SmallText().train.spec(), context);
    const MemoryQuestion question{.row = row_,
                                  .samples = samples,
                                  .optimizer = optimizer_,
                                  .workers = 2,
                                  .max_batch = whole.batch,
                                  .ops = *ops_,
                                  .device = *device_};
    const StrategyRow ring = FindStrategy("ring").value();
    const size_t all = MostNeeded(whole, ring, question)->total(),
                 half = MostNeeded(halves, ring, question)->total();
    EXPECT_LT(half, .7 * all) << context;
    return absl::StrJoin(LayoutsThatFit(whole, question, half,
                                        [](const TrainingOptions& layout, const StrategyRow& strategy) {
                                          return CheckLayout(layout, strategy, 2);
                                        }),
                         "; ");
  };
  EXPECT_THAT(fitting(4096), Has("--cp 2 --micro_batches 2 ("));
  EXPECT_EQ(fitting(1024).find("--cp"), std::string::npos) << "512 positions of a rank";
}

TEST_F(LayoutMemoryNeeded, WhatALayoutSendsIsCountedByRole) {
  const double ring = Sent(AdamGpt("ring"), 4);
  EXPECT_DOUBLE_EQ(Sent(AdamGpt("zero1"), 4), ring);
  EXPECT_DOUBLE_EQ(Sent(AdamGpt("fsdp"), 4), 1.5 * ring);
  EXPECT_LT(Sent(AdamGpt("ps-sync"), 4), ring) << "to servers, once";
  EXPECT_EQ(Sent(AdamGpt("none"), 4), 0);
  const double one_replica = Sent(AdamGpt("single", 2), 2);
  TrainingOptions twice = AdamGpt("single", 2);
  twice.micro_batches = 2;
  EXPECT_GT(Sent(twice, 2), one_replica) << "messages between the stages";
  EXPECT_LT(Sent(twice, 2), 2 * one_replica) << "of a tensor that stages share, one sum";
}

TEST_F(LayoutMemoryNeeded, WhatALayoutSendsIsWhatItsRanksCount) {
  for (const char* strategy : {"ring", "zero1", "zero2"}) ExpectSent(AdamGpt(strategy, 1, 2), 2);
  ExpectSent(Halved(AdamGpt("ring", 1, 2)), 2);
  for (const bool recomputes : {false, true}) {
    const auto expect = [&](TrainingOptions options, int replicas) {
      options.recompute = recomputes;
      ExpectSent(options, replicas);
    };
    expect(AdamGpt("single", 1, 4), 1);
    expect(OfTokens(AdamGpt("ring", 1, 2)), 2);
    expect(OfTokens(AdamGpt("single", 2, 2)), 1);
    expect(AdamGpt("ring", 2), 2);
    expect(OfSequences(AdamGpt("ring", 2)), 1);
    for (const char* way : {"ring", "contiguous", "ulysses"}) {
      TrainingOptions options = OfSequences(AdamGpt("ring", 1, 2));
      options.context_parallel = way;
      expect(options, 1);
    }
  }
  for (const char* program : {"interleaved:2", "pipedream", "pipedream-2bw"}) {
    TrainingOptions options = AdamGpt("ring", 2);
    options.optimizer = "sgd";
    options.program = program;
    if (options.program == "interleaved:2") options.cuts.clear();
    ExpectSent(options, 2);
  }
}

TEST_F(LayoutMemoryNeeded, WhatALayoutSendsIn16BitsIsWhatItsRanksCount) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  ops_ = MakeOneDnnOps(/*threads=*/1, DType::kBFloat16);
  for (TrainingOptions options : {AdamGpt("ring", 1, 2), OfTokens(AdamGpt("ring", 1, 2)), AdamGpt("ring", 2),
                                  OfSequences(AdamGpt("ring")), OfSequences(AdamGpt("ring", 2, 2))}) {
    options.precision = "bfloat16";
    ExpectSent(options, options.cp > 1 ? 1 : 2);
    if (options.cp == 1) continue;
    options.context_parallel = "ulysses";
    ExpectSent(options, 1);
  }
}

TEST_F(LayoutMemoryNeeded, ARefusedTrainingNamesThem) {
  TrainingOptions options = AdamGpt("ring");
  const size_t limit = Most(AdamGpt("zero1"), 2).total();
  options.memory = std::to_string(limit);
  for (const RankOutcome& rank : RunRanks(options, 2, SmallText())) {
    ASSERT_FALSE(rank.result.ok());
    EXPECT_EQ(rank.result.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(rank.result.status().message()),
                Has("parameters ", "gradients ", "optimizer ", "activations of ", "--memory allows ",
                    "layouts of 2 workers that fit, those that send least first: ", "--strategy zero1 ("));
  }
  options.strategy = "zero1";
  for (const RankOutcome& rank : RunRanks(options, 2, SmallText())) {
    EXPECT_TRUE(rank.result.ok()) << rank.result.status();
  }
}

}  // namespace
}  // namespace psring
