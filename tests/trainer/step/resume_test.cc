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
#include "tests/has.h"
#include "tests/trainer/kept_training.h"

namespace psring {
namespace {

// Trains and stores the checkpoints in `kept`. `stop_after`: rank 0, or with `stop_all` every rank, is
// stopped after so many steps.
std::vector<RankOutcome> Train(const TrainingOptions& options, int workers, KeptSteps& kept,
                               const Files* resume = nullptr, int stop_after = -1,
                               std::vector<std::string>* notes = nullptr, bool stop_all = false) {
  std::atomic<int64_t> steps = 0;  // of all workers that may stop
  return RunKeeping(options, workers, SmallData(), kept, resume, [&](Worker& worker) {
    if (notes != nullptr && worker.rank == 0) {
      worker.on_note = [notes](const std::string& note) { notes->push_back(note); };
    }
    if (worker.rank == 0 || stop_all) {
      worker.stops = [&, n = 0]() mutable {
        ++steps;
        steps.notify_all();
        ++n;
        // With stop_all, every worker has a part in the first checkpoint, and the last checkpoint is another
        // one: the workers wait for the first checkpoint's updates, and then rank 0 waits for the others'
        // last steps.
        const auto wait_for_steps = [&](int64_t wanted) {
          for (int64_t seen; (seen = steps) < wanted;) steps.wait(seen);
        };
        if (stop_all && n == stop_after - 4) wait_for_steps(workers * options.checkpoint_every);
        if (stop_all && n == stop_after - 1 && worker.rank == 0) wait_for_steps(workers * stop_after - 1);
        return n == stop_after;
      };
    }
  });
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
  // What an optimizer keeps does not depend on the step.
  using Stops = std::vector<int>;
  for (const auto& [optimizer, stops] : {std::pair("momentum", Stops{1, 24, 25, 59}),
                                         std::pair("adam", Stops{25}), std::pair("sgd", Stops{24})}) {
    TrainingOptions options = Options(GetParam().strategy);
    options.optimizer = optimizer;
    if (options.optimizer == std::string("sgd")) options.momentum = -1;
    GetParam().change(options);
    KeptSteps undisturbed;
    const std::vector<float> weights = WeightsOf(Train(options, GetParam().workers, undisturbed));
    ASSERT_EQ(undisturbed.size(), 1) << "only at the end";
    for (const int stop_after : stops) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", stopped after ", stop_after));
      KeptSteps kept;
      const auto stopped = Train(options, GetParam().workers, kept, nullptr, stop_after);
      EXPECT_THAT(stopped[0].result.status().message(), Has("stopped by a signal"));
      ASSERT_TRUE(kept.contains(stop_after));
      std::vector<std::string> notes;
      const auto resumed = Train(options, GetParam().workers, kept, &kept[stop_after], -1, &notes);
      EXPECT_EQ(WeightsOf(resumed), weights);
      EXPECT_EQ(resumed[0].steps.size(), static_cast<size_t>(60 - stop_after));
      ASSERT_EQ(notes.size(), 1) << absl::StrJoin(notes, "\n");
      EXPECT_THAT(notes[0], testing::StartsWith(absl::StrCat("resumed after step ", stop_after, " of 60 (")));
      // The checkpoints of the end are the same, byte for byte.
      for (const auto& [name, bytes] : undisturbed[60]) {
        if (name != kPositionFile) {
          EXPECT_TRUE(kept[60][name] == bytes) << name;
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
                    Case{"star", 2}, Case{"ps-sync", 2}, Case{"ps-sync", 3, [](auto& o) { o.servers = 2; }},
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
  KeptSteps kept;
  const std::vector<float> weights = WeightsOf(Train(options, 2, kept));
  ASSERT_EQ(kept.size(), 3);
  for (const int64_t step : {25, 50, 60}) {
    ASSERT_TRUE(kept.contains(step));
    KeptSteps more;
    EXPECT_EQ(WeightsOf(Train(options, 2, more, &kept[step])), weights) << step;
  }
}

TEST(Resume, AnotherSynchronousStrategyContinuesWithTheSameBits) {
  TrainingOptions single = Options("single");
  single.reference_workers = 2;
  TrainingOptions server = Options("ps-sync");
  TrainingOptions servers = server;
  servers.servers = 2;
  KeptSteps kept;
  const std::vector<float> weights = WeightsOf(Train(single, 1, kept));
  const std::vector<std::pair<TrainingOptions, int>> ways = {{single, 1}, {server, 2}, {servers, 2}};
  for (const auto& [before, workers_before] : ways) {
    KeptSteps of_before;
    Train(before, workers_before, of_before, nullptr, 31);
    ASSERT_TRUE(of_before.contains(31));
    for (const auto& [after, workers_after] : ways) {
      KeptSteps none;
      EXPECT_EQ(WeightsOf(Train(after, workers_after, none, &of_before[31])), weights)
          << before.strategy << " to " << after.strategy;
    }
  }
}

// From a ring of two after 30 steps to other strategies.
TEST(Resume, OtherStrategiesAndWorkersContinueFromTheCheckpoint) {
  KeptSteps kept;
  Train(Options("ring"), 2, kept, nullptr, 30);
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
        Way{"ps-backup:1", 3, 16 + 3, "becomes step 19"}, Way{"ps-async", 2, 30, "asynchronous"},
        Way{"ps-ssp:2", 3, 16 + 3, "asynchronous"}, Way{"none", 2, 30, ""}}) {
    SCOPED_TRACE(absl::StrCat(way.strategy, " x ", way.workers));
    TrainingOptions options = Options(way.strategy);
    options.deterministic = false;
    options.steps = way.step + 10;
    KeptSteps more;
    std::vector<std::string> lines;
    const auto outcomes = Train(options, way.workers, more, &kept[30], -1, &lines);
    int64_t steps = 0;
    for (const RankOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.result.ok()) << outcome.result.status();
      EXPECT_EQ(outcome.steps.front().step, way.step);
      steps += static_cast<int64_t>(outcome.steps.size());
    }
    if (way.strategy == std::string("ps-async")) {
      EXPECT_EQ(steps, 10 * way.workers);
    }
    EXPECT_THAT(absl::StrJoin(lines, "\n"), Has(way.note));
    ASSERT_TRUE(more.contains(way.step + 10));
    // It began with the checkpoint's weights and has improved since.
    const auto position = DecodePosition(KeptBytes(more[way.step + 10])).value();
    EXPECT_GT(position.samples, 480);
    EXPECT_EQ(position.sequence, 2);
  }
}

// All of a checkpoint's values of one kind, in the order of its tensors.
std::vector<float> ValuesOf(const std::string& file, absl::string_view prefix = "") {
  std::vector<float> values;
  const auto tensors = DecodeSafetensors(file);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  if (!tensors.ok()) return values;
  for (const NamedTensor& tensor : *tensors) {
    if (absl::StartsWith(tensor.name, prefix)) {
      values.insert(values.end(), tensor.values.begin(), tensor.values.end());
    }
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
    KeptSteps kept;
    Train(options, 1, kept, nullptr, 8);
    Files from = kept.rbegin()->second;
    int64_t updates = 8;
    for (const Way& way : {Way{"ring", 2, 2}, Way{"ps-sync", 2, 16}, Way{"ps-async", 1, 4},
                           Way{"ps-ssp:1", 1, 12}, Way{"data-parallel", 1, 3}, Way{"single", 1, 16}}) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", way.strategy, " after ", updates, " updates"));
      options.strategy = way.strategy;
      options.batch = way.batch;
      KeptSteps one;
      Train(options, way.workers, one, &from, 1);
      ASSERT_EQ(one.size(), 1);
      const Files to = one.begin()->second;
      ++updates;
      EXPECT_EQ(DecodePosition(KeptBytes(to))->updates, updates);
      const std::vector<float> before = ValuesOf(from[kModelFile]), after = ValuesOf(to.at(kModelFile)),
                               mean = ValuesOf(to.at(kOptimizerFile), "exp_avg."),
                               variance = ValuesOf(to.at(kOptimizerFile), "exp_avg_sq.");
      ASSERT_EQ(before.size(), mean.size());
      ASSERT_EQ(before.size(), variance.size());
      const double correction1 = 1 - std::pow(.9, updates), correction2 = 1 - std::pow(.999, updates);
      double worst = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        const double update = .01 * (mean[i] / correction1) / (std::sqrt(variance[i] / correction2) + 1e-8);
        worst = std::max(worst, std::abs(before[i] - after[i] - update));
      }
      EXPECT_LT(worst, 1e-6);
      from = to;
    }
  }
}

// Without its moments Adam begins again, with t = 1.
TEST(Resume, AnotherOptimizerBeginsWithItsFirstUpdate) {
  TrainingOptions options = Options("single");
  options.optimizer = "sgd";
  options.schedule = "constant";
  KeptSteps kept;
  Train(options, 1, kept, nullptr, 30);
  const Files from = kept.rbegin()->second;
  options.optimizer = "adam";
  options.lr = .01;
  for (const char* strategy : {"single", "ps-sync"}) {
    options.strategy = strategy;
    KeptSteps one;
    Train(options, 1, one, &from, 1);
    const Files to = one.begin()->second;
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
    KeptSteps kept;
    WeightsOf(Train(options, 3, kept));
    ASSERT_TRUE(kept.contains(60));
    ASSERT_GE(kept.size(), 2);
    const Files middle = kept.begin()->second;
    const int64_t step = kept.begin()->first;
    const auto resumed = Train(options, 3, kept, &middle);
    WeightsOf(resumed);
    EXPECT_GE(resumed[0].steps.front().step, step);
  }
}

TEST(Resume, DropsResidualsThatDoNotFitWithANote) {
  TrainingOptions options = Options("ring");
  options.wire = "bfloat16";
  options.checkpoint_every = 20;
  KeptSteps kept;
  const std::vector<float> weights = WeightsOf(Train(options, 2, kept));
  ASSERT_TRUE(kept[20].contains(WorkerFile(0)) && kept[20].contains(WorkerFile(1)));
  const auto notes = [&](int workers, const std::function<void(TrainingOptions&)>& change,
                         const std::function<void(Files&)>& lose) {
    TrainingOptions other = options;
    change(other);
    Files from = kept[20];
    lose(from);
    KeptSteps none;
    std::vector<std::string> lines;
    const std::vector<RankOutcome> outcomes = Train(other, workers, none, &from, -1, &lines);
    WeightsOf(outcomes);
    std::erase_if(lines, [](const std::string& line) { return !absl::StrContains(line, "rounding"); });
    return absl::StrJoin(lines, "\n");
  };
  const auto same = [](TrainingOptions&) {};
  const auto whole = [](Files&) {};
  const std::string what = "the rounding errors of bfloat16 gradients are dropped: ";
  EXPECT_EQ(notes(3, same, whole), what + "there are 3 workers, before there were 2");
  EXPECT_EQ(notes(
                2, [](auto& o) { o.strategy = "star"; }, whole),
            what + "the strategy was ring");
  EXPECT_EQ(notes(
                2, [](auto& o) { o.wire = "float16"; }, whole),
            what + "gradients are now sent as float16");
  EXPECT_EQ(notes(2, same, whole), "");
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
      KeptSteps kept;
      std::vector<std::string> notes;
      Train(options, 3, kept, nullptr, 30, &notes, /*stop_all=*/true);
      ASSERT_EQ(kept.size(), 2) << "that of every 25 steps, and that of the end";
      for (const auto& [step, files] : kept) {
        const TrainingPosition at = position_of(files);
        ASSERT_EQ(at.worker_steps.size(), 3) << absl::StrJoin(notes, "\n");
        EXPECT_EQ(std::accumulate(at.worker_steps.begin(), at.worker_steps.end(), int64_t{0}), at.updates);
        EXPECT_EQ(at.step, at.updates / 3);
        for (int worker = 0; worker < 3; ++worker)
          EXPECT_EQ(files.contains(WorkerFile(worker)), wire != std::string("float32"));
      }
      const Files end = kept.rbegin()->second;
      EXPECT_EQ(position_of(end).worker_steps, (std::vector<int64_t>{30, 30, 30}));
      // From the checkpoint in the middle, with an asynchronous worker ahead of others.
      const TrainingPosition middle = position_of(kept.begin()->second);
      const Files from = kept.begin()->second;
      const auto resumed = Train(options, 3, kept, &from, -1, &notes);
      WeightsOf(resumed);
      ASSERT_EQ(notes.size(), 1) << absl::StrJoin(notes, "\n");
      EXPECT_EQ(notes[0],
                absl::StrCat("resumed after step ", middle.step, " of 60 (", middle.samples, " samples)"));
      const TrainingPosition last = position_of(kept[60]);
      EXPECT_EQ(last.updates, 180);
      for (int worker = 0; worker < 3; ++worker)
        EXPECT_EQ(last.worker_steps[worker],
                  middle.worker_steps[worker] + static_cast<int64_t>(resumed[worker].steps.size()));
    }
  }
}

TEST(Resume, AFinishedTrainingIsOnlyEvaluated) {
  TrainingOptions options = Options("ps-sync");
  KeptSteps kept;
  const std::vector<float> weights = WeightsOf(Train(options, 2, kept));
  options.evaluate = true;
  KeptSteps more;
  const auto outcomes = Train(options, 2, more, &kept[60]);
  EXPECT_EQ(WeightsOf(outcomes), weights);
  EXPECT_TRUE(outcomes[0].steps.empty());
  EXPECT_EQ(outcomes[0].result->curve.size(), 1);
}

TEST(Resume, ADamagedFileIsAnErrorWithoutANote) {
  KeptSteps kept;
  std::vector<std::string> notes;
  const Files damaged = {{kModelFile, "no weights"}};
  const auto outcomes = Train(Options("single"), 1, kept, &damaged, -1, &notes);
  EXPECT_THAT(outcomes[0].result.status().message(), Has("is damaged"));
  EXPECT_TRUE(notes.empty()) << absl::StrJoin(notes, "\n");
}

TEST(Resume, RejectsAnotherModel) {
  KeptSteps kept;
  WeightsOf(Train(Options("single"), 1, kept));
  TrainingOptions other = Options("single");
  other.model = "mlp";
  KeptSteps more;
  EXPECT_THAT(Train(other, 1, more, &kept[60])[0].result.status().message(), Has("another model"));
}

}  // namespace
}  // namespace psring
