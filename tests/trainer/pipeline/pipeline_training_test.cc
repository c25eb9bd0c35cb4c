// Training of a model that is cut into stages equals that of one rank with as many micro-batches: the same
// bits, but for a tensor that two stages share. Ranks are threads.
#include <gtest/gtest.h>

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
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/walk_program.h"

namespace psring {
namespace {

TrainingOptions CutInto(TrainingOptions options, const std::string& program, int positions,
                        int micro_batches) {
  options.program = program;
  options.pp = positions;
  options.micro_batches = micro_batches;
  options.batch = 4;
  options.steps = 4;
  return options;
}

TrainingOptions SmallCnn() {
  TrainingOptions options = SmallOptions("single");
  options.model = "cnn";
  options.bucket_mb = .05;
  return options;
}

// With SGD: Adam would make large steps of those gradients that are only rounding errors.
TrainingOptions SmallGpt(const std::string& strategy) {
  TrainingOptions options = TinyGpt(strategy);
  options.optimizer = "sgd";
  options.lr = .1;
  return options;
}

struct PipelineCourse {
  const char* program;
  int positions;
  int micro_batches;
};
std::ostream& operator<<(std::ostream& out, const PipelineCourse& course) {
  return out << course.program << " on " << course.positions << " ranks, " << course.micro_batches
             << " micro-batches";
}
class Pipelines : public testing::TestWithParam<PipelineCourse> {
 protected:
  TrainingOptions Options(const TrainingOptions& whole) const {
    TrainingOptions options =
        CutInto(whole, GetParam().program, GetParam().positions, GetParam().micro_batches);
    if (options.pp == 4) options.cuts = "1,2,4";  // so that every rank has weights
    return options;
  }
};

TEST_P(Pipelines, EqualOneRankBitForBit) {
  TrainingOptions options = Options(SmallCnn());
  options.evaluate = true;
  options.eval_every = 2;
  ExpectWeightsOfOneRank(options, 1, 0, SmallData());
}

// More and fewer micro-batches than ranks, and one.
INSTANTIATE_TEST_SUITE_P(Programs, Pipelines,
                         testing::Values(PipelineCourse{"gpipe", 2, 3}, PipelineCourse{"gpipe", 4, 1},
                                         PipelineCourse{"1f1b", 2, 5}, PipelineCourse{"1f1b", 3, 2},
                                         PipelineCourse{"1f1b", 4, 8}, PipelineCourse{"1f1b", 3, 1},
                                         PipelineCourse{"interleaved:2", 2, 4},
                                         PipelineCourse{"interleaved:2", 2, 1},
                                         PipelineCourse{"interleaved:2", 2, 5}, PipelineCourse{"zb-h1", 2, 5},
                                         PipelineCourse{"zb-h1", 3, 2}, PipelineCourse{"zb-h1", 4, 8},
                                         PipelineCourse{"zb-h1", 3, 1}));

TEST(TrainedPipeline, WithOneCopyStreamEqualsOneRankBitForBit) {
  for (const auto& [program, positions, micro_batches] : {std::tuple{"gpipe", 2, 3},
                                                          {"1f1b", 3, 5},
                                                          {"1f1b", 3, 2},
                                                          {"interleaved:2", 2, 4},
                                                          {"zb-h1", 3, 4}}) {
    SCOPED_TRACE(absl::StrCat(program, " on ", positions, " ranks, ", micro_batches, " micro-batches"));
    TrainingOptions options = CutInto(SmallCnn(), program, positions, micro_batches);
    options.copy_streams = 1;
    options.evaluate = true;
    ExpectWeightsOfOneRank(options, 1, 0, SmallData());
  }
}

// A tied tensor's gradient is added in another order.
TEST(TrainedPipeline, OfEightStagesEqualsOneRank) {
  TrainingOptions gpt = SmallGpt("single");
  gpt.layers = 8;  // so that every stage has weights
  gpt.cuts = EvenCuts(gpt, 8);
  for (const auto& [program, positions, copy_streams] :
       {std::tuple{"gpipe", 8, 2}, {"1f1b", 8, 1}, {"zb-h1", 8, 2}, {"interleaved:2", 4, 2}}) {
    SCOPED_TRACE(program);
    TrainingOptions options = CutInto(gpt, program, positions, /*micro_batches=*/8);
    options.copy_streams = copy_streams;
    options.steps = 2;
    ExpectWeightsOfOneRank(options, 1, 1e-6, SmallText());
  }
}

TEST(TrainedPipeline, OfPerceptronsWithCutsOfTheUserEqualsOneRank) {
  TrainingOptions options = CutInto(SmallOptions("single"), "1f1b", 3, 4);
  options.cuts = "1,2";
  options.optimizer = "adam";
  ExpectWeightsOfOneRank(options, 1, 0, SmallData());
}

TEST(TrainedPipeline, KeepsTheRunningStatisticsOfBatchNormalization) {
  for (const char* program : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(program);
    ExpectWeightsOfOneRank(CutInto(TinyResNet("single"), program, 3, 3), 1, 0, SmallPictures());
  }
}

// Before a step, replicas share the statistics of the first one.
TEST(TrainedPipeline, CountsTheWaitForBuffersOnce) {
  for (const RankOutcome& rank :
       RunPipelines(CutInto(TinyResNet("ring"), "1f1b", 2, 2), 2, SmallPictures())) {
    ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    for (const StepRecord& step : rank.steps) ExpectNoTimeCountedTwice(step);
  }
}

// A tied tensor's gradient is added in another order.
TEST(TrainedPipeline, AddsTheGradientsOfATiedTensor) {
  for (const bool clips : {false, true}) {
    SCOPED_TRACE(clips);
    TrainingOptions options = CutInto(SmallGpt("single"), "1f1b", 2, 3);
    options.dropout = .1;
    if (clips) options.clip_norm = 1e-3;  // in every step
    ExpectWeightsOfOneRank(options, 1, 1e-6, SmallText());
  }
  TrainingOptions options = CutInto(SmallGpt("single"), "interleaved:2", 2, 4);
  options.recompute = true;
  ExpectWeightsOfOneRank(options, 1, 1e-6, SmallText());
  options = CutInto(SmallGpt("single"), "zb-h1", 2, 4);
  for (const double dropout : {0., .1}) {
    options.dropout = dropout;
    ExpectWeightsOfOneRank(options, 1, 1e-6, SmallText());
  }
}

TEST(TrainedPipeline, ClipsByTheNormOfAllStages) {
  TrainingOptions options = CutInto(SmallCnn(), "1f1b", 3, 2);
  options.clip_norm = 1e-3;
  ExpectWeightsOfOneRank(options, 1, 1e-6, SmallData());
  EXPECT_GT(RelativeL2(OneProcess(options, 1, SmallData()).weights,
                       OneProcess(CutInto(SmallCnn(), "1f1b", 3, 2), 1, SmallData()).weights),
            1e-4);
}

// 33 samples: of the last step some micro-batches are short or empty.
TEST(TrainedPipeline, CountsEverySampleOnceInAShortLastBatch) {
  const DataSplits data = MakeSyntheticData({.height = 8, .width = 8, .train = 33, .test = 10}, /*seed=*/5);
  for (const char* program : {"gpipe", "1f1b", "interleaved:2", "zb-h1"}) {
    SCOPED_TRACE(program);
    TrainingOptions options = CutInto(SmallCnn(), program, 2, 3);
    options.drop_last = "false";
    options.steps = 0;
    options.epochs = 2;
    ExpectWeightsOfOneRank(options, 1, 0, data);
  }
}

TEST(TrainedPipeline, TimesDataParallelismEqualsOneRankUpToRounding) {
  for (const auto& [strategy, program] :
       {std::pair{"ring", "1f1b"}, std::pair{"zero1", "1f1b"}, std::pair{"ring", "zb-h1"}}) {
    for (const double clip_norm : {0., 1e-3}) {
      SCOPED_TRACE(absl::StrCat(strategy, " ", program, " ", clip_norm));
      TrainingOptions options = CutInto(SmallGpt(strategy), program, 2, 2);
      options.clip_norm = clip_norm;
      options.check_replicas = true;
      ExpectWeightsOfOneRank(options, 2);
    }
  }
}

TEST(TrainedPipeline, OfEightRanksEqualsOneRankUpToRounding) {
  for (const char* strategy : {"ring", "zero1", "ps-sync"}) {
    for (const int replicas : {4, 2}) {
      SCOPED_TRACE(absl::StrCat(strategy, " of ", replicas, " replicas"));
      const int positions = 8 / replicas;
      ExpectWeightsOfOneRank(CutInto(SmallGpt(strategy), "1f1b", positions, positions), replicas, 1e-4,
                             SmallText());
    }
  }
}

TEST(TrainedPipeline, WithServersOfEachStageEqualsOneRankUpToRounding) {
  for (const int servers : {1, 2}) {
    SCOPED_TRACE(servers);
    TrainingOptions options = CutInto(SmallGpt("ps-sync"), servers == 1 ? "1f1b" : "interleaved:2", 2, 2);
    options.servers = servers;
    options.check_replicas = true;
    ExpectWeightsOfOneRank(options, 2);
  }
}

TEST(TrainedPipeline, RanksPushTheGradientsOfTheirStagesOnly) {
  TrainingOptions options = CutInto(SmallCnn(), "1f1b", 2, 2);
  options.strategy = "ps-sync";
  uint64_t elements = 0;  // of both stages, with the padding between tensors
  for (const RankOutcome& rank : RunPipelines(options, 1, SmallData())) {
    ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    ASSERT_FALSE(rank.result->bucket_elements.empty());
    for (const int64_t count : rank.result->bucket_elements) elements += static_cast<uint64_t>(count);
    for (const StepRecord& record : rank.steps) {
      EXPECT_EQ(record.buckets.size(), rank.result->bucket_elements.size());
    }
  }
  EXPECT_EQ(elements * sizeof(float), GradientBytes(*OneProcess(options, 1, SmallData()).result));
}

// Three gradients arrive in any order.
TEST(TrainedPipeline, DeterministicServersGiveTheSameBits) {
  TrainingOptions options = CutInto(SmallCnn(), "1f1b", 2, 3);
  options.strategy = "ps-sync";
  options.deterministic = true;
  options.optimizer = "adam";
  const std::vector<float> weights = WeightsOf(RunPipelines(options, 3, SmallData()));
  EXPECT_EQ(WeightsOf(RunPipelines(options, 3, SmallData())), weights);
}

TEST(TrainedPipeline, BoundedStalenessOfOneReplicaIsNone) {
  TrainingOptions options = CutInto(SmallCnn(), "1f1b", 2, 3);
  options.strategy = "ps-ssp:1";
  options.optimizer = "sgd";
  options.lr = .05;
  options.evaluate = true;
  options.eval_every = 2;
  ExpectWeightsOfOneRank(options, 1, 1e-6, SmallData());
}

TEST(TrainedPipeline, ReplicasWithBoundedStalenessTakeAllStepsAndEndWithTheSameWeights) {
  TrainingOptions options = CutInto(SmallCnn(), "1f1b", 2, 2);
  options.strategy = "ps-ssp:1";
  options.evaluate = true;
  options.eval_every = 1;
  options.steps = 8;
  const auto ranks = RunPipelines(options, 2, SmallData());
  const std::vector<float> weights = WeightsOf(ranks);
  for (const RankOutcome& rank : ranks) {
    EXPECT_EQ(rank.steps.size(), 8);
    EXPECT_EQ(rank.weights, weights);
    EXPECT_GT(rank.result->pushes, 0);
    EXPECT_LE(rank.result->staleness_max, 3);  // (2K + 1) (N - 1)
  }
  EXPECT_EQ(ranks[0].result->curve.size(), 8);
}

TEST(TrainedPipeline, ResumesWhatOneRankHasSavedAndTheReverse) {
  TrainingOptions options = CutInto(TinyResNet("single"), "1f1b", 2, 2);
  options.optimizer = "adam";
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 2;
  TrainingOptions alone = options;
  LeavePipelineOut(alone);
  KeptSteps of_one, of_stages, rest;
  const std::vector<float> end = WeightsOf(KeepReplicas(alone, 1, SmallPictures(), of_one));
  EXPECT_EQ(WeightsOf(KeepReplicas(options, 1, SmallPictures(), of_stages)), end);
  for (const int64_t step : {2, 4}) {
    ASSERT_TRUE(of_one.contains(step) && of_stages.contains(step));
    for (const char* file : {kModelFile, kOptimizerFile}) {
      EXPECT_EQ(of_one[step].at(file), of_stages[step].at(file)) << file << " of step " << step;
    }
  }
  EXPECT_EQ(WeightsOf(KeepReplicas(options, 1, SmallPictures(), rest, &of_one[2])), end);
  EXPECT_EQ(WeightsOf(KeepReplicas(alone, 1, SmallPictures(), rest, &of_stages[2])), end);
}

// zero1: each replica has a part; ps-sync: the servers of each stage have it.
TEST(TrainedPipeline, WithOptimizerStateElsewhereResumesOnOneRankAndTheReverse) {
  for (const char* strategy : {"zero1", "ps-sync"}) {
    SCOPED_TRACE(strategy);
    TrainingOptions options = CutInto(SmallCnn(), "1f1b", 2, 2);
    options.strategy = strategy;
    options.optimizer = "momentum";
    options.checkpoint_dir = "kept";
    options.checkpoint_every = 2;
    KeptSteps kept, of_one, rest;
    const std::vector<float> end = WeightsOf(KeepReplicas(options, 2, SmallData(), kept));
    ASSERT_TRUE(kept.contains(2));
    TrainingOptions alone = options;
    LeavePipelineOut(alone);
    alone.strategy = "single";
    alone.reference_workers = 2;
    EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(alone, 1, SmallData(), of_one, &kept[2])), end), 1e-4);
    EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(options, 2, SmallData(), rest, &kept[2])), end), 1e-6);
    KeptSteps alone_kept;
    const std::vector<float> end_alone = WeightsOf(KeepReplicas(alone, 1, SmallData(), alone_kept));
    ASSERT_TRUE(alone_kept.contains(2));
    EXPECT_LE(RelativeL2(WeightsOf(KeepReplicas(options, 2, SmallData(), rest, &alone_kept[2])), end_alone),
              1e-4);
  }
}

// Three gradients are added up in the same order on both stages, so the checkpoint, which has one of the
// copies, continues with the bits of an uninterrupted run.
TEST(TrainedPipeline, CopiesOfATiedTensorStayEqual) {
  for (const char* strategy : {"ring", "zero1", "ps-sync"}) {
    SCOPED_TRACE(strategy);
    TrainingOptions options = CutInto(SmallGpt(strategy), "1f1b", 2, 2);
    options.cuts = EvenCuts(options, 2);
    ExpectToResumeWithTheSameBits(options, 3, SmallText());
  }
}

TEST(TrainedPipeline, StopsOnAllRanksAfterACheckpoint) {
  TrainingOptions options = CutInto(SmallCnn(), "1f1b", 2, 2);
  options.strategy = "ring";
  options.checkpoint_dir = "kept";
  KeptSteps kept;
  const auto ranks = RunPipelines(options, 2, SmallData(), [&](Worker& worker) {
    if (worker.trace.rank() > 0) return;
    worker.stops = [n = 0]() mutable { return ++n == 2; };
    worker.save = [&kept](int64_t step, const CheckpointContent&) {
      kept[step];
      return absl::OkStatus();
    };
  });
  for (const RankOutcome& rank : ranks) {
    EXPECT_THAT(rank.result.status(), Fails(absl::StatusCode::kCancelled, "a checkpoint of step 2"));
    EXPECT_EQ(rank.steps.size(), 2);
  }
  EXPECT_TRUE(kept.contains(2));
}

TEST(TrainedPipeline, ARankThatFailsEndsTheOthers) {
  const auto ranks = RunPipelines(CutInto(SmallCnn(), "1f1b", 3, 4), 1, SmallData(), RunsOutOfSpace(1));
  EXPECT_THAT(ranks[1].result.status(), Fails(absl::StatusCode::kResourceExhausted, "no space left"));
  for (const int other : {0, 2}) {
    ASSERT_FALSE(ranks[other].result.ok());
    EXPECT_THAT(std::string(ranks[other].result.status().message()), Has("rank 1"));
  }
}

// Of the last step, by rank.
std::vector<std::vector<TraceSpan>> LastSpans(const TrainingOptions& options,
                                              std::vector<StepRecord>& records) {
  std::vector<std::vector<TraceSpan>> spans(static_cast<size_t>(options.pp));
  const auto ranks = RunPipelines(options, 1, SmallData(), [&](Worker& worker) {
    std::vector<TraceSpan>& own = spans[static_cast<size_t>(worker.trace.rank())];
    worker.on_step = [&own, &trace = worker.trace, record = worker.on_step](const StepRecord& step) {
      record(step);
      own = trace.spans();
      std::erase_if(own, [&step](const TraceSpan& span) { return span.step != step.step; });
    };
  });
  for (const RankOutcome& rank : ranks) {
    EXPECT_TRUE(rank.result.ok()) << rank.result.status();
    records.push_back(rank.steps.back());
  }
  return spans;
}

TEST(TrainedPipeline, RecordsItsActionsInTheOrderOfTheProgram) {
  for (const char* name : {"1f1b", "gpipe", "interleaved:2", "zb-h1"}) {
    SCOPED_TRACE(name);
    const StepProgram program = MakeStepProgram(*FindStepProgram(name), 2, 3).value();
    const StepProgram lowered = LowerProgram(program, ModelCut::WholeStages(program.stages())).value();
    std::vector<StepRecord> records;
    const auto spans = LastSpans(CutInto(SmallCnn(), name, 2, 3), records);
    for (size_t rank = 0; rank < 2; ++rank) {
      std::vector<std::string> computed, expected;
      std::set<std::string> messages, expected_messages;
      int64_t bubble_ns = 0, exposed_ns = 0, computed_until = 0;
      for (const TraceSpan& span : spans[rank]) {
        EXPECT_LE(span.begin_ns, span.end_ns);
        if (span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward) {
          EXPECT_GE(span.begin_ns, computed_until);
          computed_until = span.end_ns;
          computed.push_back(span.action);
        }
        if (span.kind == SpanKind::kMessage) {
          EXPECT_TRUE(messages.insert(span.action).second) << span.action;
        }
        if (span.kind == SpanKind::kBubble) bubble_ns += span.end_ns - span.begin_ns;
        if (span.kind == SpanKind::kExposed) exposed_ns += span.end_ns - span.begin_ns;
      }
      for (const StepAction& action : program.actions[rank]) expected.push_back(ToText(action));
      for (const StepAction& action : lowered.actions[rank]) {
        if (LaneOf(action.kind) == StepLane::kMessages) expected_messages.insert(ToText(action));
      }
      EXPECT_EQ(computed, expected);
      EXPECT_EQ(messages, expected_messages);
      EXPECT_NEAR(1e-6 * static_cast<double>(bubble_ns), records[rank].bubble_ms, 1e-6);
      EXPECT_NEAR(1e-6 * static_cast<double>(exposed_ns), records[rank].exposed_comm_ms, 1e-6);
    }
  }
}

TEST(TrainedPipeline, RejectsWhatItCannotCut) {
  TrainingOptions options = CutInto(SmallOptions("single"), "1f1b", 4, 2);  // three layers
  for (const RankOutcome& rank : RunPipelines(options, 1, SmallData())) {
    EXPECT_FALSE(rank.result.ok());
  }
}

}  // namespace
}  // namespace psring
