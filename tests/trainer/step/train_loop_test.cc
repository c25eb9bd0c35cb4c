#include "trainer/step/train_loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/io/files.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/replayed_model.h"

namespace psring {
namespace {

// Makes rank 2 of three late: after its first measured step it waits until the others have made `steps` steps
// together, which they can make without it.
class LateRank {
 public:
  explicit LateRank(int64_t steps) : steps_(steps) {}

  void operator()(Worker& worker) {
    worker.on_step = [this, note = worker.on_step, rank = worker.rank,
                      late = true](const StepRecord& step) mutable {
      note(step);
      if (rank < 2) ++made_;
      if (rank < 2 || step.warmup || !std::exchange(late, false)) return;
      EXPECT_TRUE(Eventually([this] { return made_ >= steps_; })) << made_;
    };
  }

 private:
  const int64_t steps_;
  std::atomic<int64_t> made_ = 0;
};

// Makes one rank `ms` slower in every step.
std::function<void(Worker&)> SlowFor(int rank, int ms) {
  return [rank, ms](Worker& worker) {
    if (worker.rank != rank) return;
    worker.on_progress = [ms](int64_t, int64_t, double) { absl::SleepFor(absl::Milliseconds(ms)); };
  };
}

TEST(TrainLoop, TracesTheUnitsOfTheFirst20MeasuredSteps) {
  TrainingOptions options = SmallOptions("single");
  options.warmup_steps = 1;
  options.micro_batches = 2;
  std::vector<TraceSpan> spans;
  TrainRanks(options, 1, SmallData(), [&](Worker& worker) {
    worker.on_step = [&, record = worker.on_step](const StepRecord& step) {
      record(step);
      spans = worker.trace.spans();
    };
  });
  std::map<int64_t, std::vector<std::string>> units;  // by step
  std::map<int64_t, int> passes;
  for (const TraceSpan& span : spans) {
    if (span.kind == SpanKind::kUnit) units[span.step].push_back(span.action);
    if (span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward) {
      EXPECT_EQ(span.action, "");
      ++passes[span.step];
    }
  }
  ASSERT_EQ(passes.size(), 21);
  ASSERT_EQ(units.size(), 20);
  EXPECT_EQ(units.begin()->first, 1);
  for (const auto& [step, actions] : units) {
    EXPECT_EQ(passes[step], 4);
    EXPECT_GT(actions.size(), 4);
    EXPECT_EQ(actions.front(), "0.0F0");
    EXPECT_EQ(actions.back(), "0.0B1");
    EXPECT_EQ(actions, units.begin()->second);
  }
  options.steps = 22;
  TrainRanks(options, 1, SmallData(), [&](Worker& worker) {
    worker.on_step = [&](const StepRecord& /*step*/) { spans = worker.trace.spans(); };
  });
  const auto last = std::ranges::find_if(
      spans, [](const TraceSpan& span) { return span.kind == SpanKind::kUnit && span.step > 20; });
  EXPECT_EQ(last, spans.end());
}

TEST(TrainLoop, LearnsTheSyntheticPictures) {
  const DataSplits data = MakeSyntheticData({.height = 12, .width = 12, .train = 8000, .test = 501}, 1);
  TrainingOptions options = SmallOptions("single");
  options.steps = 0;
  options.epochs = 1;
  options.batch = 32;
  options.evaluate = true;
  const auto outcomes = TrainRanks(options, 1, data);
  const RankResult& result = *outcomes[0].result;
  ASSERT_EQ(result.curve.size(), 1);
  EXPECT_GT(result.curve[0].test_accuracy, .3);  // of ten classes; 144 noisy pixels allow no more
  EXPECT_EQ(result.curve[0].samples, 8000);
  EXPECT_LT(result.final_loss, outcomes[0].steps[0].loss);
  // 501 samples, in batches of 128: accuracy is a whole number of 501ths.
  const double right = result.curve[0].test_accuracy * 501;
  EXPECT_NEAR(right, std::round(right), 1e-6);
}

TEST(TrainLoop, SnapshotsDoNotAffectTraining) {
  const DataSplits data = SmallData();
  for (const auto& [strategy, workers] : {std::pair{"single", 1}, {"ring", 2}, {"ps-sync", 2}}) {
    TrainingOptions options = SmallOptions(strategy);
    options.deterministic = true;
    const auto without = RunRanks(options, workers, data);
    options.evaluate = true;
    options.eval_every = 8;
    const auto with = TrainRanks(options, workers, data);
    EXPECT_EQ(with[0].weights, without[0].weights) << strategy;
    const std::vector<CurvePoint>& curve = with[0].result->curve;
    ASSERT_EQ(curve.size(), 3);  // 8, 16 and the end
    for (size_t i = 0; i < curve.size(); ++i) {
      const int64_t steps = i < 2 ? 8 * (i + 1) : 20;
      EXPECT_EQ(curve[i].updates, steps);
      EXPECT_EQ(curve[i].samples, steps * options.batch * workers);
      EXPECT_GT(curve[i].wall_s, i == 0 ? 0 : curve[i - 1].wall_s);
      EXPECT_GT(curve[i].train_loss, 0);
    }
    for (int rank = 1; rank < workers; ++rank) EXPECT_TRUE(with[rank].result->curve.empty());
  }
}

TEST(TrainLoop, AsynchronousWorkersEndWithOneSetOfWeights) {
  const auto outcomes = TrainRanks(SmallOptions("ps-async"), 3, SmallData());
  int64_t pushes = 0;
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
    EXPECT_EQ(outcome.result->weights_hash, outcomes[0].result->weights_hash);
    pushes += outcome.result->pushes;
    // Staleness cannot exceed the number of the others' updates.
    EXPECT_LT(outcome.result->staleness_max, 3 * 20);
  }
  EXPECT_EQ(pushes, 3 * 20 * 3);  // workers times steps times buckets
}

TEST(TrainLoop, FasterAsynchronousWorkersMakeMoreSteps) {
  TrainingOptions options = SmallOptions("ps-async");
  options.evaluate = true;
  options.eval_every = 5;
  options.warmup_steps = 2;
  // One of the two makes at least 23 of the 46, and 20 of all 66 are left.
  LateRank late(46);
  const auto outcomes = TrainRanks(options, 3, SmallData(), std::ref(late));
  size_t steps = 0;
  for (const RankOutcome& outcome : outcomes) {
    steps += outcome.steps.size();
  }
  EXPECT_EQ(steps, 3 * 22) << "exactly the budget";
  EXPECT_LT(outcomes[2].steps.size(), std::max(outcomes[0].steps.size(), outcomes[1].steps.size()));
  EXPECT_EQ(outcomes[0].result->curve.back().updates, 66);
  EXPECT_EQ(outcomes[0].result->curve.back().samples, 66 * options.batch);
}

TEST(TrainLoop, AStragglersBucketsAreDelayedByAMultipleOfItsComputing) {
  TrainingOptions options = SmallOptions("ps-sync");
  options.straggler = "1:20";
  options.jitter_ms = "1";
  const auto outcomes = TrainRanks(options, 2, SmallData());
  for (const RankOutcome& outcome : outcomes) {
    const bool slowed = outcome.result->rank == 1;
    double slept = 0, ratio = 0;
    for (const StepRecord& step : outcome.steps) {
      EXPECT_LE(step.delay_ms, step.compute_ms);
      slept += step.delay_ms;
      ratio = std::max(ratio, (step.delay_ms - 1) / (step.compute_ms - step.delay_ms));
      if (!slowed) continue;
      // The last layer's bucket is ready later than without the straggler.
      EXPECT_GT(step.buckets.front().ready_ns - step.begin_ns, 1'000'000);
    }
    EXPECT_GE(slept, 20 * 1.0);
    if (slowed) {
      // 19 times, of computing without what the system takes from it: seen in the step from which it took
      // least.
      EXPECT_GT(ratio, 3);
    }
  }
  EXPECT_EQ(outcomes[0].weights, outcomes[1].weights);
}

TEST(TrainLoop, StalenessIsWithinTheBound) {
  for (const int bound : {1, 3}) {
    const auto outcomes =
        TrainRanks(SmallOptions(absl::StrCat("ps-ssp:", bound)), 3, SmallData(), SlowFor(2, 3));
    for (const RankOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.result->algorithm, absl::StrCat("ssp:", bound));
      EXPECT_EQ(outcome.weights, outcomes[0].weights);
      EXPECT_EQ(outcome.result->pushes, 20 * 3);
      EXPECT_LE(outcome.result->staleness_max, (2 * bound + 1) * 2);
      EXPECT_EQ(outcome.result->dropped_gradients, 0);
    }
    // The others were ahead by at most K: they began no step s before rank 2 had finished step s - K - 1.
    for (int64_t step = bound + 1; step < 20; ++step) {
      const StepRecord& slow = outcomes[2].steps[step - bound - 1];
      EXPECT_GE(outcomes[0].steps[step].begin_ns, slow.buckets.back().begin_ns) << "step " << step;
    }
  }
}

TEST(TrainLoop, ALateBackupWorkerSkipsStepsAndEndsWithTheOthers) {
  TrainingOptions options = SmallOptions("ps-backup:1");
  options.warmup_steps = 2;
  options.check_replicas = true;
  options.evaluate = true;
  options.eval_every = 8;
  LateRank late(2 * 12);
  const auto outcomes = TrainRanks(options, 3, SmallData(), std::ref(late));
  std::map<int64_t, std::string> hash_of_version;
  int64_t in_updates = 0;
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
    EXPECT_EQ(outcome.result->strategy, "ps-backup:1");
    EXPECT_EQ(outcome.result->global_batch, 2 * options.batch);
    EXPECT_EQ(outcome.result->staleness_max, 0);
    int64_t dropped = 0;
    for (size_t i = 0; i < outcome.steps.size(); ++i) {
      const StepRecord& record = outcome.steps[i];
      dropped += record.dropped;
      in_updates += !record.dropped;
      EXPECT_EQ(record.payload_tx_bytes, record.dropped ? 0 : record.payload_rx_bytes);
      // All workers continue from one complete version.
      const int64_t next = i + 1 < outcome.steps.size() ? outcome.steps[i + 1].step : 22;
      if (!record.dropped) {
        EXPECT_EQ(next, record.step + 1);
      }
      const std::string& hash = hash_of_version.emplace(next, record.weights_hash).first->second;
      EXPECT_EQ(hash, record.weights_hash) << "version " << next;
    }
    EXPECT_EQ(outcome.result->dropped_gradients, dropped);
  }
  EXPECT_EQ(in_updates, 22 * 2) << "two of three in every update";
  EXPECT_GT(outcomes[2].result->dropped_gradients, 0);
  EXPECT_LT(outcomes[2].steps.size(), 22);
  EXPECT_EQ(outcomes[0].result->curve.back().samples, 22 * 2 * options.batch);
}

// A workload whose first tensor is ready first; in the declared order it would be sent last.
class Wide : public testing::Test {
 protected:
  Wide() : path_(testing::TempDir() + absl::StrCat("wide-", getpid(), ".csv")) {
    const absl::Status written = WriteFile(
        path_,
        "# batch: 4\n# device: none\n# forward_ms: 0\nname,bytes,ready_ms,declared\nwide,4000,0.1,0\n"
        "last,8000,0.2,3\nmiddle,8000,0.3,2\nfirst,8000,6,1\n");
    EXPECT_TRUE(written.ok()) << written;
  }
  ~Wide() override { std::remove(path_.c_str()); }

  TrainingOptions Options(const std::string& strategy) const {
    TrainingOptions options;
    options.strategy = strategy;
    options.workload = path_;
    options.steps = 4;
    options.bucket_mb = .004;
    options.timeout_s = 30;
    EXPECT_TRUE(ApplyWorkload(options).ok());
    return options;
  }

 private:
  const std::string path_;
};

TEST_F(Wide, BucketsAreInTheOrderOfReadiness) {
  const TrainingOptions options = Options("ring");
  const auto data = DataOf(options);
  const auto outcomes = TrainRanks(options, 3, *data);
  for (const RankOutcome& outcome : outcomes) {
    const DdpFigures& ddp = outcome.result->ddp;
    EXPECT_TRUE(ddp.has_rebuilt_buckets);
    EXPECT_EQ(ddp.ready_order, (std::vector<std::string>{"wide", "last", "middle", "first"}));
    EXPECT_EQ(ddp.bucket_bytes, (std::vector<int64_t>{8000, 8000, 8000, 4000}));
    EXPECT_EQ(ddp.rebuilt_bucket_bytes, (std::vector<int64_t>{4000, 8000, 8000, 8000}));
    EXPECT_EQ(outcome.result->bucket_elements, (std::vector<int64_t>{1000, 2000, 2000, 2000}));
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
    ASSERT_EQ(outcome.steps.size(), 4);
    for (const StepRecord& record : outcome.steps) {
      ASSERT_EQ(record.buckets.size(), 4);
      // The wide part is ready long before the layer next to which it is declared.
      EXPECT_LT(record.buckets[0].ready_ns, record.buckets[1].ready_ns);
    }
  }
  // Every tensor's first gradient is 4, the batch; so is their mean 1 in every step.
  TrainingOptions alone = Options("single");
  const auto reference = TrainRanks(alone, 1, *data);
  EXPECT_FALSE(reference[0].result->ddp.has_rebuilt_buckets);
  EXPECT_LE(RelativeL2(outcomes[0].weights, reference[0].weights), 1e-6);
  for (const size_t first : {0, 1000, 3000, 5000}) EXPECT_NE(outcomes[0].weights[first], 0);
}

TEST_F(Wide, UnitsHaveOnePlanWhateverTheSizeOfBuckets) {
  const auto data = DataOf(Options("ring"));
  const std::vector<float> ring = WeightsOf(TrainRanks(Options("ring"), 3, *data));
  for (const char* strategy : {"zero2", "fsdp"}) {
    TrainingOptions options = Options(strategy);
    options.bucket_mb = 1;
    for (const RankOutcome& outcome : TrainRanks(options, 3, *data)) {
      const DdpFigures& ddp = outcome.result->ddp;
      EXPECT_FALSE(ddp.has_rebuilt_buckets);
      EXPECT_EQ(ddp.bucket_bytes, (std::vector<int64_t>{4000, 8000, 8000, 8000}));
      EXPECT_LE(RelativeL2(outcome.weights, ring), 1e-6);
    }
  }
}

TEST_F(Wide, AServersBucketsAreInThatOrderFromTheBeginning) {
  const TrainingOptions options = Options("ps-sync");
  const auto outcomes = TrainRanks(options, 2, *DataOf(options));
  for (const RankOutcome& outcome : outcomes) {
    const DdpFigures& ddp = outcome.result->ddp;
    EXPECT_FALSE(ddp.has_rebuilt_buckets);
    EXPECT_EQ(ddp.ready_order.front(), "wide");
    EXPECT_EQ(ddp.bucket_bytes, (std::vector<int64_t>{4000, 8000, 8000, 8000}));
    EXPECT_EQ(outcome.result->bucket_elements, (std::vector<int64_t>{1000, 2000, 2000, 2000}));
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
    for (const StepRecord& record : outcome.steps)
      EXPECT_LT(record.buckets[0].ready_ns, record.buckets[1].ready_ns);
  }
  TrainingOptions alone = Options("single");
  const auto reference = TrainRanks(alone, 1, *DataOf(alone));
  EXPECT_LE(RelativeL2(outcomes[0].weights, reference[0].weights), 1e-6);
}

TEST(TrainLoop, DdpTimesMatchTheStep) {
  TrainingOptions options = SmallOptions("ring");
  options.micro_batches = 2;
  const auto outcomes = TrainRanks(options, 2, SmallData());
  for (const RankOutcome& outcome : outcomes) {
    const DdpFigures& ddp = outcome.result->ddp;
    double compute_ms = 0, comm_ms = 0;
    for (const StepRecord& step : outcome.steps) {
      compute_ms += step.compute_ms / 20;
      comm_ms += step.comm_busy_ms / 20;
    }
    EXPECT_NEAR(ddp.forward_ms + ddp.backward_ms, compute_ms, 1e-6);
    EXPECT_NEAR(ddp.comm_ms, comm_ms, 1e-6);
    EXPECT_LE(ddp.overlap_ms, ddp.comm_ms);
    EXPECT_LE(ddp.overlap_ms, ddp.backward_ms);
    EXPECT_EQ(ddp.rebuilt_bucket_bytes, ddp.bucket_bytes) << "the last layer is ready first";
  }
}

TEST(TrainLoop, ADivergingRunNamesTheStepAndARemedy) {
  TrainingOptions options = SmallOptions("single");
  options.lr = 1e20;
  const auto outcomes = RunRanks(options, 1, SmallData());
  const std::string message(outcomes[0].result.status().message());
  EXPECT_TRUE(message.starts_with("step ")) << message;
  EXPECT_THAT(message, Has("lower --lr"));
}

TEST(TrainLoop, RejectsInvalidOptionsBeforeAnyStep) {
  const auto error = [](const TrainingOptions& options, int workers = 1) {
    const auto outcomes = RunRanks(options, workers, SmallData());
    EXPECT_TRUE(outcomes[0].steps.empty());
    return std::string(outcomes[0].result.status().message());
  };
  TrainingOptions options = SmallOptions("single");
  options.batch = 401;
  EXPECT_THAT(error(options), Has("larger than the data"));
  EXPECT_THAT(error(SmallOptions("single"), 2), Has("one process"));
  options = SmallOptions("single");
  options.evaluate = true;
  options.eval_every = 1;
  options.steps = 100;
  EXPECT_THAT(error(options), Has("--eval_every 2 or more"));
  options = SmallOptions("single");
  options.model = "resnet";
  EXPECT_THAT(error(options), Has("unknown model"));
}

TEST(TrainLoop, WarnsOnceOfMomentumWithStaleGradients) {
  TrainingOptions options = SmallOptions("ps-async");
  options.momentum = .9;
  const auto outcomes = RunRanks(options, 2, SmallData());
  EXPECT_EQ(outcomes[0].warnings.size(), 1);
  EXPECT_EQ(outcomes[1].warnings.size(), 0);
}

}  // namespace
}  // namespace psring
