// Models whose tables are on parameter servers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "tests/trainer/cluster.h"
#include "trainer/data/clicks.h"
#include "trainer/data/words.h"

namespace psring {
namespace {

const DataSplits& ServedClicks() {
  static const DataSplits data = MakeClicks({.rows = 300, .alpha = 1, .train = 2000, .test = 200}, 1);
  return data;
}

TrainingOptions ServedDlrm(const std::string& strategy, const std::string& optimizer = "sgd") {
  TrainingOptions options = SmallOptions(strategy);
  options.model = "dlrm-small";
  options.data = "zipf:300:1";
  options.width = 8;
  options.optimizer = optimizer;
  options.lr = optimizer == "sgd" ? .5 : .01;
  options.evaluate = true;
  return options;
}

const DataSplits& ServedText() {
  static const DataSplits data = [] {
    const std::string path = absl::StrCat(testing::TempDir(), "/served_words_", getpid());
    std::ofstream file(path);
    for (int word = 0; word < 3000; ++word)
      file << "abcdefgh"[word * word % 8] << "mnopq"[word / 7 % 5] << " ";
    file.close();
    auto read = ReadWords(path, /*seed=*/1);
    std::filesystem::remove(path);
    return *std::move(read);
  }();
  return data;
}

TrainingOptions ServedWords(const std::string& strategy) {
  TrainingOptions options = ServedDlrm(strategy);
  options.model = "skipgram";
  options.data = "words";
  return options;
}

// The weights outside of tables.
std::vector<float> DenseWeights(const RankOutcome& outcome, size_t count) {
  return {outcome.weights.begin(), outcome.weights.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST(TableServers, ADeterministicServerEqualsOneProcessBitForBit) {
  for (const char* optimizer : {"sgd", "adagrad", "adam"}) {
    for (const auto& [workers, servers] : {std::pair{2, 1}, {3, 1}, {2, 3}}) {
      SCOPED_TRACE(testing::Message()
                   << optimizer << ", " << workers << " workers, " << servers << " servers");
      TrainingOptions single = ServedDlrm("single", optimizer), server = ServedDlrm("ps-sync", optimizer);
      single.reference_workers = workers;
      server.deterministic = true;
      server.servers = servers;
      const auto expected = TrainRanks(single, 1, ServedClicks()),
                 ranks = TrainRanks(server, workers, ServedClicks());
      EXPECT_EQ(ranks[0].weights, DenseWeights(expected[0], ranks[0].weights.size()));
      ASSERT_EQ(ranks[0].result->curve.size(), 1);
      EXPECT_EQ(ranks[0].result->curve[0].test_loss, expected[0].result->curve[0].test_loss);
    }
  }
}

TEST(TableServers, BytesAreThoseOfTheRows) {
  TrainingOptions options = ServedDlrm("ps-sync");
  options.steps = 3;
  const auto ranks = TrainRanks(options, 2, ServedClicks());
  const uint64_t dense = GradientBytes(*ranks[1].result);
  for (const StepRecord& step : ranks[1].steps) {
    // Numbers are sent twice, to pull and to push; rows of width 8 are received and sent.
    const uint64_t received = step.payload_rx_bytes - dense, sent = step.payload_tx_bytes - dense;
    EXPECT_GT(received, 0);
    EXPECT_EQ(received % 32, 0);
    EXPECT_EQ(sent, received / 32 * (4 + 4 + 32));
  }
}

TEST(TableServers, OtherModesLearnTheSameClicks) {
  for (const char* strategy : {"ps-async", "ps-ssp:2", "ps-backup:1"}) {
    TrainingOptions options = ServedDlrm(strategy);
    options.batch = 50;
    options.steps = 200;
    options.lr = .5;
    const auto ranks = TrainRanks(options, 2, ServedClicks());
    EXPECT_LT(ranks[0].result->final_loss, ranks[0].steps.front().loss - .03) << strategy;
  }
}

double LossOf(const RankOutcome& outcome) { return outcome.result->curve.at(0).test_loss; }

// Pushes of a model that has only tables are counted, as updates, for the bound on staleness, and as late.
TEST(OnlyTables, TrainWithAsynchronousServersAndBackupWorkers) {
  constexpr int kWorkers = 3, kSteps = 100;
  TrainingOptions options = ServedWords("ps-sync");
  options.batch = 16;
  options.steps = kSteps;
  options.optimizer = "adagrad";
  options.lr = .1;
  const auto expected = TrainRanks(options, kWorkers, ServedText());
  const double first_loss = expected[0].steps.front().loss, learned = first_loss - LossOf(expected[0]);
  EXPECT_GT(learned, .2);
  for (const int servers : {1, 2}) {
    for (const char* strategy : {"ps-async", "ps-ssp:1", "ps-backup:1"}) {
      SCOPED_TRACE(absl::StrCat(strategy, ", ", servers, " servers"));
      options.strategy = strategy;
      options.servers = servers;
      const auto ranks = TrainRanks(options, kWorkers, ServedText());
      int64_t steps = 0, pushes = 0, staleness = 0, dropped = 0;
      for (const RankOutcome& rank : ranks) {
        steps += static_cast<int64_t>(rank.steps.size());
        pushes += rank.result->pushes;
        staleness += rank.result->staleness_sum;
        dropped += rank.result->dropped_gradients;
        EXPECT_EQ(rank.result->bucket_elements, std::vector<int64_t>{16});
      }
      EXPECT_GT(first_loss - LossOf(ranks[0]), .5 * learned);
      if (absl::StartsWith(strategy, "ps-backup")) {
        EXPECT_EQ(steps - dropped, kSteps * (kWorkers - 1)) << dropped << " were dropped";
        EXPECT_EQ(staleness, 0);
      } else {
        EXPECT_EQ(steps, kSteps * kWorkers);
        EXPECT_EQ(pushes, servers * steps);
        EXPECT_GT(staleness, 0);
      }
      if (strategy == std::string("ps-ssp:1")) {
        for (const RankOutcome& rank : ranks) EXPECT_LE(rank.result->staleness_max, 3 * (kWorkers - 1));
      }
    }
  }
}

// One worker, whose updates have only one possible order.
TEST(OnlyTables, OneAsynchronousWorkerEqualsOneProcessBitForBit) {
  for (const char* optimizer : {"sgd", "adagrad", "adam"}) {
    TrainingOptions options = ServedWords("single");
    options.optimizer = optimizer;
    options.lr = optimizer == std::string("sgd") ? .5 : .01;
    const auto expected = TrainRanks(options, 1, ServedText());
    for (const char* strategy : {"ps-async", "ps-ssp:1", "ps-backup:0"}) {
      options.strategy = strategy;
      const auto ranks = TrainRanks(options, 1, ServedText());
      EXPECT_EQ(LossOf(ranks[0]), LossOf(expected[0])) << optimizer << ", " << strategy;
    }
  }
}

// A worker of four is late in every step: its gradient is dropped, with its rows.
TEST(TableServers, RowsOfADroppedGradientAreNotPushed) {
  TrainingOptions options = ServedDlrm("ps-backup:1");
  options.straggler = "3:20";
  options.batch = 50;
  options.steps = 20;
  const auto ranks = TrainRanks(options, 4, ServedClicks());
  int64_t dropped = 0, updates = 0;
  for (const RankOutcome& rank : ranks) {
    dropped += rank.result->dropped_gradients;
    for (const StepRecord& step : rank.steps) {
      updates += step.dropped ? 0 : 1;
      // Nothing but row numbers is sent.
      if (step.dropped) {
        EXPECT_LT(step.payload_tx_bytes, step.payload_rx_bytes / 2);
      }
    }
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(updates, 20 * 3);
}

// Rows are added in the order of workers, and a ring of two adds the same two gradients.
TEST(Hybrid, OfTwoRanksEqualsOneProcessBitForBit) {
  for (const char* optimizer : {"sgd", "adagrad", "adam"}) {
    for (const int servers : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << optimizer << ", " << servers << " servers");
      TrainingOptions single = ServedDlrm("single", optimizer), hybrid = ServedDlrm("hybrid", optimizer);
      single.reference_workers = 2;
      hybrid.servers = servers;
      const auto expected = TrainRanks(single, 1, ServedClicks()),
                 ranks = TrainRanks(hybrid, 2, ServedClicks());
      for (const RankOutcome& rank : ranks) {
        EXPECT_EQ(rank.weights, DenseWeights(expected[0], rank.weights.size()));
        EXPECT_EQ(rank.result->algorithm, "ring");
      }
      ASSERT_EQ(ranks[0].result->curve.size(), 1);
      EXPECT_EQ(ranks[0].result->curve[0].test_loss, expected[0].result->curve[0].test_loss);
    }
  }
}

// A ring of more adds each chunk beginning with another rank, so the last bits differ from one process.
TEST(Hybrid, OfMoreRanksHasEqualReplicasAndRepeatsItself) {
  for (const char* optimizer : {"sgd", "adagrad"}) {
    for (const int workers : {1, 3, 4}) {
      SCOPED_TRACE(testing::Message() << optimizer << ", " << workers << " workers");
      TrainingOptions single = ServedDlrm("single", optimizer), hybrid = ServedDlrm("hybrid", optimizer);
      single.reference_workers = workers;
      hybrid.servers = 2;
      hybrid.check_replicas = true;
      const auto expected = TrainRanks(single, 1, ServedClicks()),
                 ranks = TrainRanks(hybrid, workers, ServedClicks()),
                 again = TrainRanks(hybrid, workers, ServedClicks());
      for (const RankOutcome& rank : ranks) {
        EXPECT_EQ(rank.weights, ranks[0].weights);
        for (size_t i = 0; i < rank.steps.size(); ++i)
          EXPECT_EQ(rank.steps[i].weights_hash, ranks[0].steps[i].weights_hash) << "step " << i;
      }
      EXPECT_EQ(again[0].weights, ranks[0].weights);
      EXPECT_EQ(again[0].result->curve[0].test_loss, ranks[0].result->curve[0].test_loss);
      EXPECT_LE(RelativeL2(ranks[0].weights, DenseWeights(expected[0], ranks[0].weights.size())), 1e-4);
      EXPECT_NEAR(ranks[0].result->curve[0].test_loss, expected[0].result->curve[0].test_loss, 1e-4);
    }
  }
}

TEST(Hybrid, BytesAreThoseOfARingAndOfTheRows) {
  for (const auto& [workers, servers] : {std::pair{2, 1}, {2, 2}, {3, 2}}) {
    SCOPED_TRACE(testing::Message() << workers << " workers, " << servers << " servers");
    TrainingOptions options = ServedDlrm("hybrid");
    options.steps = 3;
    options.servers = servers;
    const auto ranks = TrainRanks(options, workers, ServedClicks());
    // All ranks of a ring together.
    const uint64_t dense = 2 * static_cast<uint64_t>(workers - 1) * GradientBytes(*ranks[0].result);
    double asked = 0, pulled = 0, pushed = 0;
    for (const RankOutcome& rank : ranks) {
      asked += 3 * rank.result->rows.asked_bytes;
      pulled += 3 * rank.result->rows.pulled_bytes;
      pushed += 3 * rank.result->rows.pushed_bytes;
    }
    uint64_t sent = 0, received = 0;
    for (size_t step = 0; step < 3; ++step) {
      uint64_t rows_sent = 0, rows_received = 0;
      for (const RankOutcome& rank : ranks) {
        rows_sent += rank.steps[step].payload_tx_bytes;
        rows_received += rank.steps[step].payload_rx_bytes;
      }
      rows_sent -= dense;
      rows_received -= dense;
      // Rows of width 8 are received and sent; their numbers are sent to pull and to push.
      EXPECT_GT(rows_received, 0);
      EXPECT_EQ(rows_received % 32, 0);
      EXPECT_EQ(rows_sent, rows_received / 32 * (4 + 4 + 32));
      sent += rows_sent;
      received += rows_received;
    }
    EXPECT_NEAR(asked + pushed, static_cast<double>(sent), .01);
    EXPECT_NEAR(pulled, static_cast<double>(received), .01);
  }
}

// Both tables, and nothing for the ring.
TEST(Hybrid, TrainsAModelThatHasOnlyTables) {
  TrainingOptions single = ServedWords("single"), hybrid = ServedWords("hybrid");
  single.reference_workers = 2;
  const auto expected = TrainRanks(single, 1, ServedText()), ranks = TrainRanks(hybrid, 2, ServedText());
  ASSERT_EQ(ranks[0].steps.size(), expected[0].steps.size());
  EXPECT_EQ(ranks[0].result->curve[0].test_loss, expected[0].result->curve[0].test_loss);
  EXPECT_GT(ranks[1].steps[1].payload_tx_bytes, 0);
}

TEST(Hybrid, AShareWithoutSamplesHasNoRows) {
  TrainingOptions single = ServedDlrm("single"), hybrid = ServedDlrm("hybrid");
  single.reference_workers = 3;
  single.drop_last = hybrid.drop_last = "false";
  single.steps = hybrid.steps = 0;
  single.batch = hybrid.batch = 666;  // the last step has two samples
  const auto expected = TrainRanks(single, 1, ServedClicks()), ranks = TrainRanks(hybrid, 3, ServedClicks());
  EXPECT_EQ(ranks[0].steps.size(), expected[0].steps.size());
  EXPECT_LE(RelativeL2(ranks[0].weights, DenseWeights(expected[0], ranks[0].weights.size())), 1e-4);
}

TEST(Hybrid, AFailedRankStopsTheOthers) {
  TrainingOptions options = ServedDlrm("hybrid");
  options.steps = 10'000;
  const MonotonicTime begin = MonotonicNow();
  const auto ranks = RunRanks(options, 3, ServedClicks(), [](Worker& worker) {
    if (worker.rank != 2) return;
    worker.objection = [calls = 0]() mutable {
      return ++calls == 3 ? absl::InternalError("the disk is full") : absl::OkStatus();
    };
  });
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(25)) << "before any timeout";
  for (const RankOutcome& rank : ranks) EXPECT_FALSE(rank.result.ok());
}

TEST(Hybrid, WhatItDoesNotSupportIsRejected) {
  const auto error_of = [](void (*change)(TrainingOptions&), const DataSplits& data = ServedClicks()) {
    TrainingOptions options = ServedDlrm("hybrid");
    change(options);
    return std::string(RunRanks(options, 2, data)[0].result.status().message());
  };
  EXPECT_EQ(
      error_of([](TrainingOptions& o) { o.model = "mlp-small", o.width = 0; }, SmallData()),
      "--strategy hybrid needs a model with tables of rows, such as dlrm-small; use ring for mlp-small");
  EXPECT_EQ(error_of([](TrainingOptions& o) { o.ps_schedule = "serial"; }),
            "--strategy hybrid does not support --ps_schedule serial, which is for servers that have all "
            "parameters; omit it");
  EXPECT_EQ(
      error_of([](TrainingOptions& o) { o.on_worker_loss = "continue"; }),
      "--strategy hybrid does not support --on_worker_loss continue, because its all-reduce needs every "
      "worker; omit it");
  EXPECT_EQ(
      error_of([](TrainingOptions& o) { o.clock = "virtual"; }),
      "--strategy hybrid does not support --clock virtual, which has no model of the rows of tables; omit "
      "it");
  EXPECT_NE(error_of([](TrainingOptions& o) { o.wire = "float16"; }).find("--wire does not support"),
            std::string::npos);
}

TEST(TableServers, AShareWithoutSamplesHasNoRows) {
  TrainingOptions single = ServedDlrm("single"), server = ServedDlrm("ps-sync");
  single.reference_workers = 3;
  server.deterministic = true;
  single.drop_last = server.drop_last = "false";
  single.steps = server.steps = 0;
  single.batch = server.batch = 666;  // the last step has two samples
  const auto expected = TrainRanks(single, 1, ServedClicks()), ranks = TrainRanks(server, 3, ServedClicks());
  EXPECT_EQ(ranks[0].weights, DenseWeights(expected[0], ranks[0].weights.size()));
}

TEST(TableServers, WhatTablesOnServersDoNotSupportIsRejected) {
  const auto error_of = [](void (*change)(TrainingOptions&)) {
    TrainingOptions options = ServedDlrm("ps-sync");
    change(options);
    return std::string(RunRanks(options, 2, ServedClicks())[0].result.status().message());
  };
  EXPECT_EQ(error_of([](TrainingOptions& o) { o.clock = "virtual"; }),
            "--clock virtual does not support the tables of dlrm-small; omit it");
}

}  // namespace
}  // namespace psring
