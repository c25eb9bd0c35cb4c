// Training that is stopped at any step and resumed ends with the weights of uninterrupted training; ranks are
// threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/safetensors.h"
#include "tests/decode_safetensors.h"
#include "tests/has.h"
#include "tests/trainer/kept_training.h"

namespace psring {
namespace {

struct Trained {
  std::vector<RankOutcome> ranks;
  KeptSteps kept;                  // checkpoints
  std::vector<std::string> notes;  // of rank 0
};

struct Course {
  const Files* resume = nullptr;
  int stop_after = -1;    // steps, after which rank 0 is stopped
  bool stop_all = false;  // so are the others
};

Trained TrainCourse(const TrainingOptions& options, int workers, const Course& course = {}) {
  Trained trained;
  std::atomic<int64_t> steps = 0;  // of all workers that may stop
  trained.ranks = RunKeeping(options, workers, SmallData(), trained.kept, course.resume, [&](Worker& worker) {
    if (worker.rank == 0) {
      worker.on_note = [&trained](const std::string& note) { trained.notes.push_back(note); };
    }
    if (worker.rank > 0 && !course.stop_all) return;
    worker.stops = [&, rank = worker.rank, n = 0]() mutable {
      ++steps;
      steps.notify_all();
      ++n;
      // With stop_all, every worker has a part in the first checkpoint, and the last checkpoint is another
      // one: the workers wait for the first checkpoint's updates, and then rank 0 waits for the others' last
      // steps.
      const auto wait_for_steps = [&](int64_t wanted) {
        for (int64_t seen; (seen = steps) < wanted;) steps.wait(seen);
      };
      if (course.stop_all && n == course.stop_after - 4) wait_for_steps(workers * options.checkpoint_every);
      if (course.stop_all && n == course.stop_after - 1 && rank == 0)
        wait_for_steps(workers * course.stop_after - 1);
      return n == course.stop_after;
    };
  });
  return trained;
}

TrainingOptions Options(const std::string& strategy) {
  TrainingOptions options = SmallOptions(strategy);
  options.steps = 60;  // beyond the first epoch
  options.schedule = "linear";
  options.deterministic = absl::StartsWith(strategy, "ps-");
  options.checkpoint_dir = "kept";
  return options;
}

struct Case {
  const char* strategy;
  int workers;
  std::function<void(TrainingOptions&)> change = [](TrainingOptions&) {};
};

class Stopped : public testing::TestWithParam<Case> {};

TEST_P(Stopped, AtAnyStepItEndsWithTheWeightsOfUninterruptedTraining) {
  // What an optimizer keeps does not depend on the step. An epoch has 25 steps.
  using Stops = std::vector<int>;
  for (const auto& [optimizer, stops] :
       {std::pair("momentum", Stops{1, 25}), std::pair("adam", Stops{24}), std::pair("sgd", Stops{59})}) {
    TrainingOptions options = Options(GetParam().strategy);
    options.optimizer = optimizer;
    if (options.optimizer == std::string("sgd")) options.momentum = -1;
    GetParam().change(options);
    const Trained undisturbed = TrainCourse(options, GetParam().workers);
    ASSERT_EQ(undisturbed.kept.size(), 1) << "only at the end";
    for (const int stop_after : stops) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", stopped after ", stop_after));
      Trained stopped = TrainCourse(options, GetParam().workers, {.stop_after = stop_after});
      EXPECT_THAT(stopped.ranks[0].result.status().message(), Has("stopped by a signal"));
      ASSERT_TRUE(stopped.kept.contains(stop_after));
      Trained resumed = TrainCourse(options, GetParam().workers, {.resume = &stopped.kept[stop_after]});
      EXPECT_EQ(WeightsOf(resumed.ranks), WeightsOf(undisturbed.ranks));
      EXPECT_EQ(resumed.ranks[0].steps.size(), static_cast<size_t>(60 - stop_after));
      EXPECT_THAT(resumed.notes, testing::ElementsAre(testing::StartsWith(
                                     absl::StrCat("resumed after step ", stop_after, " of 60 ("))));
      // The checkpoints of the end are the same, byte for byte.
      for (const auto& [name, bytes] : undisturbed.kept.at(60)) {
        if (name != kPositionFile) {
          EXPECT_TRUE(resumed.kept[60][name] == bytes) << name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, Stopped,
    testing::Values(Case{"single", 1}, Case{"single", 1, [](auto& o) { o.reference_workers = 3; }},
                    Case{"data-parallel", 1, [](auto& o) { o.replicas = 2; }}, Case{"ring", 2},
                    Case{"ring", 3, [](auto& o) { o.clip_norm = .5; }},
                    // Accumulated, with an epoch of 23 steps whose last is short.
                    Case{"ring", 3, [](auto& o) { o.micro_batches = 2, o.batch = 3, o.drop_last = "false"; }},
                    Case{"zero1", 2}, Case{"zero1", 3, [](auto& o) { o.clip_norm = .5; }},
                    Case{"zero1", 3, [](auto& o) { o.wire = "bfloat16", o.micro_batches = 2; }},
                    Case{"zero2", 3, [](auto& o) { o.clip_norm = .5; }}, Case{"fsdp", 2},
                    Case{"fsdp", 3, [](auto& o) { o.clip_norm = .5, o.reshard = "never"; }},
                    Case{"fsdp", 4, [](auto& o) { o.dp_shard = 2; }}, Case{"star", 2}, Case{"ps-sync", 2},
                    Case{"ps-sync", 3, [](auto& o) { o.servers = 2; }},
                    Case{"ps-sync", 2, [](auto& o) { o.micro_batches = 2, o.drop_last = "false"; }},
                    Case{"ps-sync", 2, [](auto& o) { o.clip_norm = .5; }},
                    // With each rank's residual.
                    Case{"ring", 3, [](auto& o) { o.wire = "bfloat16"; }},
                    Case{"ring", 2, [](auto& o) { o.wire = "float16", o.micro_batches = 2; }},
                    Case{"ps-sync", 1, [](auto& o) { o.wire = "bfloat16"; }},
                    Case{"ps-sync", 3, [](auto& o) { o.wire = "bfloat16", o.micro_batches = 2; }},
                    Case{"ps-sync", 2, [](auto& o) { o.wire = "float16", o.servers = 2; }}),
    [](const auto& info) {
      std::string name = absl::StrCat(info.param.strategy, "On", info.param.workers, "No", info.index);
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

TEST(Resume, WritesCheckpointsAtTheInterval) {
  TrainingOptions options = Options("ring");
  options.checkpoint_every = 25;
  Trained trained = TrainCourse(options, 2);
  ASSERT_EQ(trained.kept.size(), 3);
  for (const int64_t step : {25, 50, 60}) {
    ASSERT_TRUE(trained.kept.contains(step));
    EXPECT_EQ(WeightsOf(TrainCourse(options, 2, {.resume = &trained.kept[step]}).ranks),
              WeightsOf(trained.ranks))
        << step;
  }
}

TEST(Resume, AnotherSynchronousStrategyContinuesWithTheSameBits) {
  TrainingOptions single = Options("single");
  single.reference_workers = 2;
  TrainingOptions server = Options("ps-sync");
  TrainingOptions servers = server;
  servers.servers = 2;
  const std::vector<float> weights = WeightsOf(TrainCourse(single, 1).ranks);
  const std::vector<std::pair<TrainingOptions, int>> ways = {{single, 1}, {server, 2}, {servers, 2}};
  for (const auto& [before, workers_before] : ways) {
    KeptSteps kept = TrainCourse(before, workers_before, {.stop_after = 31}).kept;
    ASSERT_TRUE(kept.contains(31));
    for (const auto& [after, workers_after] : ways) {
      EXPECT_EQ(WeightsOf(TrainCourse(after, workers_after, {.resume = &kept[31]}).ranks), weights)
          << before.strategy << " to " << after.strategy;
    }
  }
}

// From a ring of two after 30 steps to other strategies.
TEST(Resume, OtherStrategiesAndWorkersContinueFromTheCheckpoint) {
  KeptSteps kept = TrainCourse(Options("ring"), 2, {.stop_after = 30}).kept;
  ASSERT_TRUE(kept.contains(30));
  // 30 steps of 16 samples: one epoch of 400, and 80 samples more.
  struct Way {
    const char* strategy;
    int workers;
    int64_t step;
    const char* note;
  };
  for (const Way& way :
       {Way{"ring", 1, 60, "step 30 becomes step 60"},
        Way{"star", 3, 16 + 3, "8 samples of epoch 1 are drawn again"},
        Way{"zero1", 3, 16 + 3, "8 samples of epoch 1 are drawn again"},
        Way{"fsdp", 3, 16 + 3, "8 samples of epoch 1 are drawn again"},
        Way{"ps-backup:1", 3, 16 + 3, "becomes step 19"}, Way{"ps-async", 2, 30, "asynchronous"},
        Way{"ps-ssp:2", 3, 16 + 3, "asynchronous"}, Way{"none", 2, 30, ""}}) {
    SCOPED_TRACE(absl::StrCat(way.strategy, " x ", way.workers));
    TrainingOptions options = Options(way.strategy);
    options.deterministic = false;
    options.steps = way.step + 10;
    Trained resumed = TrainCourse(options, way.workers, {.resume = &kept[30]});
    int64_t steps = 0;
    for (const RankOutcome& outcome : resumed.ranks) {
      ASSERT_TRUE(outcome.result.ok()) << outcome.result.status();
      EXPECT_EQ(outcome.steps.front().step, way.step);
      steps += static_cast<int64_t>(outcome.steps.size());
    }
    if (way.strategy == std::string("ps-async")) {
      EXPECT_EQ(steps, 10 * way.workers);
    }
    EXPECT_THAT(absl::StrJoin(resumed.notes, "\n"), Has(way.note));
    ASSERT_TRUE(resumed.kept.contains(way.step + 10));
    // It began with the checkpoint's weights and has improved since.
    const auto position = DecodePosition(KeptBytes(resumed.kept[way.step + 10])).value();
    EXPECT_GT(position.samples, 480);
    EXPECT_EQ(position.sequence, 2);
  }
}

// All of a checkpoint's values, in the order of its tensors.
std::vector<float> ValuesOf(const std::string& file) {
  std::vector<float> values;
  const std::vector<NamedTensor> tensors = DecodeSafetensors(file).value();
  for (const NamedTensor& tensor : tensors) {
    values.insert(values.end(), tensor.values.begin(), tensor.values.end());
  }
  return values;
}

// One run continues the other with another batch, number of workers and strategy, so that its position in the
// data is not the number of updates.
TEST(Resume, AdamCountsTheUpdatesOfItsMoments) {
  struct Way {
    const char* strategy;
    int workers, batch;
  };
  for (const char* optimizer : {"adam", "adamw"}) {
    TrainingOptions options = Options("single");
    options.optimizer = optimizer;
    options.schedule = "constant";
    options.lr = .01;
    options.weight_decay = 0;
    options.steps = 1000;
    options.batch = 16;
    Files from = TrainCourse(options, 1, {.stop_after = 8}).kept.rbegin()->second;
    int64_t updates = 8;
    for (const Way& way : {Way{"ring", 2, 2}, Way{"ps-sync", 2, 16}, Way{"ps-async", 1, 4},
                           Way{"ps-ssp:1", 1, 12}, Way{"data-parallel", 1, 3}, Way{"single", 1, 16}}) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", way.strategy, " after ", updates, " updates"));
      options.strategy = way.strategy;
      options.batch = way.batch;
      const KeptSteps one = TrainCourse(options, way.workers, {.resume = &from, .stop_after = 1}).kept;
      ASSERT_EQ(one.size(), 1);
      const Files to = one.begin()->second;
      ExpectAdamUpdate(from, to, ++updates);
      from = to;
    }
  }
}

// Without its moments Adam begins again, with t = 1.
TEST(Resume, AnotherOptimizerBeginsWithItsFirstUpdate) {
  TrainingOptions options = Options("single");
  options.optimizer = "sgd";
  options.schedule = "constant";
  const Files from = TrainCourse(options, 1, {.stop_after = 30}).kept.rbegin()->second;
  options.optimizer = "adam";
  options.lr = .01;
  for (const char* strategy : {"single", "ps-sync"}) {
    options.strategy = strategy;
    const Files to = TrainCourse(options, 1, {.resume = &from, .stop_after = 1}).kept.begin()->second;
    EXPECT_EQ(DecodePosition(KeptBytes(to))->updates, 1);
    const std::vector<float> before = ValuesOf(from.at(kModelFile)), after = ValuesOf(to.at(kModelFile));
    double most = 0;
    for (size_t i = 0; i < before.size(); ++i)
      most = std::max(most, std::abs(double{before[i]} - double{after[i]}));
    EXPECT_NEAR(most, .01, 1e-6) << strategy;  // the sign of the gradient, times the rate
  }
}

TEST(Resume, AsynchronousWorkersStopAndContinue) {
  for (const char* strategy : {"ps-async", "ps-ssp:1", "ps-backup:1"}) {
    SCOPED_TRACE(strategy);
    TrainingOptions options = Options(strategy);
    options.deterministic = false;
    options.checkpoint_every = 20;
    const Trained whole = TrainCourse(options, 3);
    WeightsOf(whole.ranks);
    ASSERT_TRUE(whole.kept.contains(60));
    ASSERT_GE(whole.kept.size(), 2);
    const auto& [step, middle] = *whole.kept.begin();
    const Trained resumed = TrainCourse(options, 3, {.resume = &middle});
    WeightsOf(resumed.ranks);
    EXPECT_GE(resumed.ranks[0].steps.front().step, step);
  }
}

TEST(Resume, DropsResidualsThatDoNotFitWithANote) {
  TrainingOptions options = Options("ring");
  options.wire = "bfloat16";
  options.checkpoint_every = 20;
  const Trained trained = TrainCourse(options, 2);
  WeightsOf(trained.ranks);
  const Files& from = trained.kept.at(20);
  ASSERT_TRUE(from.contains(WorkerFile(0)) && from.contains(WorkerFile(1)));
  const auto notes = [&](int workers, const TrainingOptions& other) {
    Trained resumed = TrainCourse(other, workers, {.resume = &from});
    WeightsOf(resumed.ranks);
    std::erase_if(resumed.notes,
                  [](const std::string& line) { return !absl::StrContains(line, "rounding"); });
    return absl::StrJoin(resumed.notes, "\n");
  };
  TrainingOptions star = options, shorter = options;
  star.strategy = "star";
  shorter.wire = "float16";
  const std::string what = "the rounding errors of bfloat16 gradients are dropped: ";
  EXPECT_EQ(notes(3, options), what + "there are 3 workers, before there were 2");
  EXPECT_EQ(notes(2, star), what + "the strategy was ring");
  EXPECT_EQ(notes(2, shorter), what + "gradients are now sent as float16");
  EXPECT_EQ(notes(2, options), "");
}

TEST(Resume, AsynchronousWorkersContinueAtTheirOwnSamples) {
  for (const char* strategy : {"ps-async", "ps-ssp:2"}) {
    for (const char* wire : {"float32", "bfloat16"}) {
      SCOPED_TRACE(absl::StrCat(strategy, " ", wire));
      TrainingOptions options = Options(strategy);
      options.deterministic = false;
      options.wire = wire;
      options.jitter_ms = "1";
      options.checkpoint_every = 25;
      const auto position_of = [](const Files& files) { return *DecodePosition(KeptBytes(files)); };
      const Trained stopped = TrainCourse(options, 3, {.stop_after = 30, .stop_all = true});
      EXPECT_THAT(stopped.notes, testing::IsEmpty());
      ASSERT_EQ(stopped.kept.size(), 2) << "that of every 25 steps, and that of the end";
      for (const auto& [step, files] : stopped.kept) {
        const TrainingPosition at = position_of(files);
        ASSERT_EQ(at.worker_steps.size(), 3) << absl::StrJoin(stopped.notes, "\n");
        EXPECT_EQ(std::accumulate(at.worker_steps.begin(), at.worker_steps.end(), int64_t{0}), at.updates);
        EXPECT_EQ(at.step, at.updates / 3);
        for (int worker = 0; worker < 3; ++worker)
          EXPECT_EQ(files.contains(WorkerFile(worker)), wire != std::string("float32"));
      }
      EXPECT_EQ(position_of(stopped.kept.rbegin()->second).worker_steps, (std::vector<int64_t>{30, 30, 30}));
      // From the checkpoint in the middle, with an asynchronous worker ahead of others.
      const Files& from = stopped.kept.begin()->second;
      const TrainingPosition middle = position_of(from);
      const Trained resumed = TrainCourse(options, 3, {.resume = &from});
      WeightsOf(resumed.ranks);
      EXPECT_THAT(resumed.notes, testing::ElementsAre(absl::StrCat("resumed after step ", middle.step,
                                                                   " of 60 (", middle.samples, " samples)")));
      const TrainingPosition last = position_of(resumed.kept.at(60));
      EXPECT_EQ(last.updates, 180);
      for (int worker = 0; worker < 3; ++worker)
        EXPECT_EQ(last.worker_steps[worker],
                  middle.worker_steps[worker] + static_cast<int64_t>(resumed.ranks[worker].steps.size()));
    }
  }
}

TEST(Resume, AFinishedTrainingIsOnlyEvaluated) {
  TrainingOptions options = Options("ps-sync");
  const Trained trained = TrainCourse(options, 2);
  options.evaluate = true;
  const Trained resumed = TrainCourse(options, 2, {.resume = &trained.kept.at(60)});
  EXPECT_EQ(WeightsOf(resumed.ranks), WeightsOf(trained.ranks));
  EXPECT_TRUE(resumed.ranks[0].steps.empty());
  EXPECT_EQ(resumed.ranks[0].result->curve.size(), 1);
}

TEST(Resume, ADamagedFileIsAnErrorWithoutANote) {
  const Files damaged = {{kModelFile, "no weights"}};
  const Trained resumed = TrainCourse(Options("single"), 1, {.resume = &damaged});
  EXPECT_THAT(resumed.ranks[0].result.status().message(), Has("is damaged"));
  EXPECT_THAT(resumed.notes, testing::IsEmpty());
}

TEST(Resume, RejectsAnotherModel) {
  const KeptSteps kept = TrainCourse(Options("single"), 1).kept;
  TrainingOptions other = Options("single");
  other.model = "mlp";
  EXPECT_THAT(TrainCourse(other, 1, {.resume = &kept.at(60)}).ranks[0].result.status().message(),
              Has("another model"));
}

}  // namespace
}  // namespace psring
