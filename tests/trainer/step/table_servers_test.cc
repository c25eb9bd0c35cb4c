// Models whose tables are on parameter servers.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

// A model with tables and other parameters, which evaluates, and one that has only tables.
TrainingOptions ServedDlrm(const std::string& strategy, const std::string& optimizer = "sgd") {
  TrainingOptions options = TinyDlrm(strategy, optimizer);
  options.evaluate = true;
  return options;
}
TrainingOptions ServedWords(const std::string& strategy) {
  TrainingOptions options = ServedDlrm(strategy);
  options.model = "skipgram";
  options.data = "words";
  return options;
}

const DataSplits& ServedText() {
  static const DataSplits data = [] {
    std::string text;
    for (int word = 0; word < 3000; ++word) {
      text += {"abcdefgh"[word * word % 8], "mnopq"[word / 7 % 5], ' '};
    }
    return FromText(text, [](const std::string& path) { return ReadWords(path, /*seed=*/1); });
  }();
  return data;
}

TEST(TableServers, ADeterministicServerEqualsOneProcessBitForBit) {
  for (const char* optimizer : {"sgd", "adagrad", "adam"}) {
    for (const auto& [workers, servers] : {std::pair{2, 1}, {3, 1}, {2, 3}}) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", workers, " workers, ", servers, " servers"));
      TrainingOptions options = ServedDlrm("ps-sync", optimizer);
      options.deterministic = true;
      options.servers = servers;
      ExpectOneProcess(options, workers, SmallClicks());
    }
  }
}

TEST(TableServers, BytesAreThoseOfTheRows) {
  TrainingOptions options = ServedDlrm("ps-sync");
  options.steps = 3;
  const auto ranks = TrainRanks(options, 2, SmallClicks());
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
    const auto ranks = TrainRanks(options, 2, SmallClicks());
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
    for (const char* strategy : {"ps-async", "ps-ssp:1", "ps-backup:0"}) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", strategy));
      TrainingOptions options = ServedWords(strategy);
      options.optimizer = optimizer;
      if (options.optimizer != "sgd") options.lr = .01;
      ExpectOneProcess(options, 1, ServedText());
    }
  }
}

// A worker of four is late in every step: its gradient is dropped, with its rows.
TEST(TableServers, RowsOfADroppedGradientAreNotPushed) {
  TrainingOptions options = ServedDlrm("ps-backup:1");
  options.straggler = "3:20";
  options.batch = 50;
  options.steps = 20;
  const auto ranks = TrainRanks(options, 4, SmallClicks());
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
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", servers, " servers"));
      TrainingOptions options = ServedDlrm("hybrid", optimizer);
      options.servers = servers;
      for (const RankOutcome& rank : ExpectOneProcess(options, 2, SmallClicks())) {
        EXPECT_EQ(rank.result->algorithm, "ring");
      }
    }
  }
}

// A ring of more adds each chunk beginning with another rank, so the last bits differ from one process.
TEST(Hybrid, OfMoreRanksHasEqualReplicasAndRepeatsItself) {
  for (const char* optimizer : {"sgd", "adagrad"}) {
    for (const int workers : {1, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", workers, " workers"));
      TrainingOptions options = ServedDlrm("hybrid", optimizer);
      options.servers = 2;
      options.check_replicas = true;
      const auto ranks = ExpectOneProcess(options, workers, SmallClicks(), 1e-4),
                 again = TrainRanks(options, workers, SmallClicks());
      EXPECT_EQ(again[0].weights, ranks[0].weights);
      EXPECT_EQ(LossOf(again[0]), LossOf(ranks[0]));
    }
  }
}

TEST(Hybrid, BytesAreThoseOfARingAndOfTheRows) {
  for (const auto& [workers, servers] : {std::pair{2, 1}, {2, 2}, {3, 2}}) {
    SCOPED_TRACE(testing::Message() << workers << " workers, " << servers << " servers");
    TrainingOptions options = ServedDlrm("hybrid");
    options.steps = 3;
    options.servers = servers;
    const auto ranks = TrainRanks(options, workers, SmallClicks());
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
  const auto ranks = ExpectOneProcess(ServedWords("hybrid"), 2, ServedText());
  EXPECT_EQ(ranks[0].steps.size(), 20);
  EXPECT_GT(ranks[1].steps[1].payload_tx_bytes, 0);
}

TEST(TableServers, AShareWithoutSamplesHasNoRows) {
  for (const char* strategy : {"ps-sync", "hybrid"}) {
    TrainingOptions options = ServedDlrm(strategy);
    options.deterministic = options.strategy == "ps-sync";
    options.drop_last = "false";
    options.steps = 0;
    options.batch = 666;  // the last step has two samples
    const auto ranks = ExpectOneProcess(options, 3, SmallClicks(), options.deterministic ? 0 : 1e-4);
    EXPECT_EQ(ranks[0].steps.size(), 2);
  }
}

TEST(Hybrid, AFailedRankStopsTheOthers) {
  TrainingOptions options = ServedDlrm("hybrid");
  options.steps = 10'000;
  const MonotonicTime begin = MonotonicNow();
  const auto ranks = RunRanks(options, 3, SmallClicks(), [](Worker& worker) {
    if (worker.rank != 2) return;
    worker.objection = [calls = 0]() mutable {
      return ++calls == 3 ? absl::InternalError("the disk is full") : absl::OkStatus();
    };
  });
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(25)) << "before any timeout";
  for (const RankOutcome& rank : ranks) EXPECT_FALSE(rank.result.ok());
}

TEST(Hybrid, WhatItDoesNotSupportIsRejected) {
  const auto error_of = [](void (*change)(TrainingOptions&), const DataSplits& data = SmallClicks()) {
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
  EXPECT_THAT(error_of([](TrainingOptions& o) { o.wire = "float16"; }), Has("--wire does not support"));
}

TEST(TableServers, WhatTablesOnServersDoNotSupportIsRejected) {
  const auto error_of = [](void (*change)(TrainingOptions&)) {
    TrainingOptions options = ServedDlrm("ps-sync");
    change(options);
    return std::string(RunRanks(options, 2, SmallClicks())[0].result.status().message());
  };
  EXPECT_EQ(error_of([](TrainingOptions& o) { o.clock = "virtual"; }),
            "--clock virtual does not support the tables of dlrm-small; omit it");
}

}  // namespace
}  // namespace psring
