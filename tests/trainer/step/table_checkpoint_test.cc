// Models whose tables are on parameter servers are saved and resumed; ranks are threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/io/safetensors.h"
#include "tests/decode_safetensors.h"
#include "tests/has.h"
#include "tests/trainer/kept_training.h"

namespace psring {
namespace {

struct Way {
  std::string strategy;
  int workers = 2, servers = 1;
  std::string name() const {
    return absl::StrCat(strategy, ", ", workers, " workers, ", servers, " servers");
  }
};

TrainingOptions OptionsOf(const Way& way, const std::string& optimizer) {
  TrainingOptions options = TinyDlrm(way.strategy, optimizer);
  options.schedule = "linear";
  options.steps = 6;
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 3;
  if (way.strategy == "single") options.reference_workers = 2;
  if (absl::StartsWith(way.strategy, "ps-") || way.strategy == "hybrid") options.servers = way.servers;
  options.deterministic = way.strategy == "ps-sync";
  return options;
}

// Returns the checkpoints by step. Only rank 0 reads the files of `resume`.
KeptSteps TrainTables(const TrainingOptions& options, int workers, const Files* resume = nullptr,
                      std::vector<absl::Status>* errors = nullptr) {
  KeptSteps kept;
  CheckpointBytes without{.path = "rank 0's checkpoint", .has_optimizer = true};
  if (resume != nullptr) without.position = resume->at(kPositionFile);
  const auto outcomes = RunKeeping(options, workers, SmallClicks(), kept, resume, [&](Worker& worker) {
    if (resume != nullptr && worker.rank > 0) worker.resume = &without;
  });
  for (const RankOutcome& outcome : outcomes) {
    if (errors != nullptr) {
      errors->push_back(outcome.result.status());
    } else {
      EXPECT_TRUE(outcome.result.ok()) << outcome.result.status();
    }
  }
  return kept;
}

// Weights, tables and the optimizer's state, bit for bit.
void ExpectSameState(KeptSteps& actual, KeptSteps& expected, int64_t step) {
  ASSERT_TRUE(actual.contains(step) && expected.contains(step));
  for (const char* file : {kModelFile, kOptimizerFile}) {
    EXPECT_FALSE(expected[step][file].empty());
    EXPECT_TRUE(actual[step][file] == expected[step][file]) << file << " of step " << step;
  }
}

class TableCheckpoints : public testing::TestWithParam<const char*> {};

TEST_P(TableCheckpoints, ContinueWithAnyStrategyAndServersWithTheSameBits) {
  const std::string optimizer = GetParam();
  const std::vector<Way> ways = {{"single", 1},     {"ring"},   {"ps-sync"},
                                 {"ps-sync", 2, 3}, {"hybrid"}, {"hybrid", 2, 2}};
  KeptSteps expected = TrainTables(OptionsOf(ways[0], optimizer), 1);
  for (const Way& before : ways) {
    KeptSteps saved = TrainTables(OptionsOf(before, optimizer), before.workers);
    ExpectSameState(saved, expected, 3);
    ExpectSameState(saved, expected, 6);
    EXPECT_EQ(FindTensors(saved[3][kModelFile]).value().back().name, "tables.7.weight");
    for (const Way& after : ways) {
      if (before.servers > 1 && after.servers > 1) continue;
      // Each way once; with the optimizer that has most state every pair.
      if (optimizer != "adam" && (&after - &before + 6) % 6 != 1) continue;
      SCOPED_TRACE(absl::StrCat(before.name(), " to ", after.name()));
      KeptSteps resumed = TrainTables(OptionsOf(after, optimizer), after.workers, &saved[3]);
      EXPECT_FALSE(resumed.contains(3));
      ExpectSameState(resumed, expected, 6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, TableCheckpoints, testing::Values("sgd", "adagrad", "adam"),
                         [](const auto& info) { return info.param; });

// A single asynchronous worker has one possible result.
TEST(TableCheckpoint, OfAnAsynchronousWorkerContinuesWithTheSameBits) {
  for (const char* strategy : {"ps-async", "ps-ssp:2"}) {
    SCOPED_TRACE(strategy);
    KeptSteps expected = TrainTables(OptionsOf({strategy, 1, 1}, "adam"), 1);
    ASSERT_TRUE(expected.contains(3));
    KeptSteps resumed = TrainTables(OptionsOf({strategy, 1, 2}, "adam"), 1, &expected[3]);
    ExpectSameState(resumed, expected, 6);
  }
}

// The moments of rows continue with the count of their updates, with any batch.
TEST(TableCheckpoint, AdamCountsTheUpdatesOfItsMoments) {
  KeptSteps saved = TrainTables(OptionsOf({"single"}, "adam"), 1);
  for (const Way& way : {Way{"single", 1}, Way{"ring", 2}, Way{"ps-sync", 2, 2}, Way{"hybrid", 2},
                         Way{"ps-async", 1}, Way{"ps-ssp:1", 1, 2}}) {
    SCOPED_TRACE(way.name());
    TrainingOptions options = OptionsOf(way, "adam");
    options.schedule = "constant";
    options.batch = 4;  // of 16 samples in a step: 6 steps become 12 or 24
    options.reference_workers = 1;
    const int64_t begin = 6 * 16 / (4 * way.workers);
    options.steps = begin + 1;
    options.checkpoint_every = 0;
    KeptSteps to = TrainTables(options, way.workers, &saved[6]);
    ASSERT_TRUE(to.contains(begin + 1));
    ExpectAdamUpdate(saved[6], to[begin + 1], 7);
  }
}

TEST(TableCheckpoint, OfAsynchronousWorkersContinues) {
  const auto options = [](int servers) {
    TrainingOptions asynchronous = OptionsOf({"ps-async", 2, servers}, "adagrad");
    asynchronous.steps = 60;
    asynchronous.checkpoint_every = 20;
    return asynchronous;
  };
  KeptSteps saved = TrainTables(options(2), 2);
  ASSERT_GE(saved.size(), 2);
  const Files middle = saved.begin()->second;
  KeptSteps resumed = TrainTables(options(1), 2, &middle);
  ASSERT_TRUE(resumed.contains(60));
  EXPECT_FALSE(resumed[60][kModelFile] == middle.at(kModelFile));
  EXPECT_EQ(DecodePosition(KeptBytes(resumed[60])).value().updates, 120);
}

TEST(TableCheckpoint, OfOtherTablesIsAnErrorOfOneLine) {
  KeptSteps saved = TrainTables(OptionsOf({"ps-sync"}, "adagrad"), 2);
  for (const char* strategy : {"ps-sync", "hybrid", "single"}) {
    SCOPED_TRACE(strategy);
    const auto error_of = [&](const Files& files) {
      std::vector<absl::Status> errors;
      TrainTables(OptionsOf({strategy, 1}, "adagrad"), 1, &files, &errors);
      return std::string(errors[0].message());
    };
    Files damaged = saved[3];
    damaged[kOptimizerFile].resize(damaged[kOptimizerFile].size() - 4);
    EXPECT_EQ(error_of(damaged), "kept is damaged: its tensor \"sum.tables.7.weight\" is outside the file");
    Files other = saved[3];
    other[kOptimizerFile] = other[kModelFile];
    EXPECT_THAT(error_of(other), Has("kept: it is of another model: it has no sum."));
  }
}

// The file becomes shorter while rank 0 sends it, and the other rank waits for the rows.
TEST(TableCheckpoint, ThatCannotBeReadToItsEndEndsAllRanksAtOnce) {
  KeptSteps saved = TrainTables(OptionsOf({"ps-sync"}, "adagrad"), 2);
  const std::string path = absl::StrCat(testing::TempDir(), "/shorter-", getpid());
  for (const char* strategy : {"ps-sync", "hybrid"}) {
    SCOPED_TRACE(strategy);
    std::ofstream(path, std::ios::binary) << saved[3][kOptimizerFile];
    CheckpointBytes shorter = KeptBytes(saved[3]), without = shorter;
    auto opened = FileContent::Open(path).value();
    shorter.optimizer = opened;
    without.model = without.optimizer = FileContent();
    std::filesystem::resize_file(path, saved[3][kOptimizerFile].size() - 4);
    const MonotonicTime begin = MonotonicNow();
    const auto ranks = RunRanks(OptionsOf({strategy}, "adagrad"), 2, SmallClicks(), [&](Worker& worker) {
      worker.resume = worker.rank == 0 ? &shorter : &without;
    });
    EXPECT_LT(MonotonicNow() - begin, absl::Seconds(25)) << "before any timeout";
    EXPECT_EQ(ranks[0].result.status().message(), "kept is damaged: it ends early");
    EXPECT_THAT(ranks[1].result.status().message(), Has("worker 0 was lost"));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace psring
