#include "experiments/analysis/summarise.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "experiments/analysis/waiting.h"
#include "tests/experiments/test_catalog.h"

namespace psring {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

StepRecord Step(int rank, int64_t step, int64_t begin_ms, double step_ms) {
  return {.rank = rank,
          .step = step,
          .samples = 128,
          .begin_ns = begin_ms * kNsPerMs,
          .step_ms = step_ms,
          .compute_ms = step_ms - 2,
          .comm_busy_ms = 4,
          .exposed_comm_ms = 2,
          .payload_tx_bytes = 1000,
          .payload_rx_bytes = 500,
          .loss = 0.5};
}

// `ranks` ranks with a warm-up step and two measured steps of 10 ms.
RunRecords Records(int ranks, double step_ms = 10) {
  RunRecords records;
  for (int rank = 0; rank < ranks; ++rank) {
    records.ranks.push_back({.rank = rank,
                             .world_size = ranks,
                             .parameters = 1000,
                             .bucket_elements = {400, 600},
                             .final_loss = 0.5,
                             .weights_hash = "same",
                             .peak_memory_mb = 100.0 + rank});
    auto& steps = records.steps.emplace_back();
    for (int64_t step = 0; step < 3; ++step)
      steps.push_back(Step(rank, step, static_cast<int64_t>(step * step_ms), step_ms));
    steps[0].warmup = true;
    steps[0].step_ms = 1000;
  }
  return records;
}

ConfigurationRuns Runs(const std::string& strategy, int workers, const std::vector<double>& step_ms,
                       int cores = 64) {
  ConfigurationRuns runs{.configuration = TestConfiguration(strategy, workers, cores)};
  for (double ms : step_ms) {
    const RunRecords records = Records(workers, ms);
    runs.sample = records.ranks.front();
    runs.cost.push_back(*FiguresOf(runs.configuration, records));
  }
  return runs;
}

TEST(Summarise, ExcludesWarmUp) {
  const auto figures = FiguresOf(TestConfiguration("ring", 2), Records(2)).value();
  EXPECT_EQ(figures.steps, 2);
  EXPECT_EQ(figures.samples, 512);
  EXPECT_DOUBLE_EQ(figures.step_ms, 10);
  EXPECT_DOUBLE_EQ(figures.wall_s, 0.02);
  EXPECT_DOUBLE_EQ(figures.samples_per_s, 512 / 0.02);
  EXPECT_DOUBLE_EQ(figures.payload_tx_bytes, 1000);
  EXPECT_DOUBLE_EQ(figures.worker_peak_memory_mb, 101);
}

TEST(Summarise, AsynchronousSamplesPerSecondDoNotDependOnTheLengthOfTheLaunch) {
  RunRecords records = Records(2);
  // Rank 1 is twice as slow: 256 samples in 20 ms, 256 in 40 ms.
  for (int64_t step = 1; step < 3; ++step)
    records.steps[1][static_cast<size_t>(step)] = Step(1, step, 10 + 20 * (step - 1), 20);
  const auto figures = FiguresOf(TestConfiguration("ps-async", 2), records);
  EXPECT_DOUBLE_EQ(figures->wall_s, 0.04);
  EXPECT_DOUBLE_EQ(figures->samples_per_s, 256 / 0.02 + 256 / 0.04);
  EXPECT_FALSE(figures->wait_ms.has_value());
  // Of 3 pushes 2 are rank 0's, so the mean step has 40/3 ms.
  EXPECT_NEAR(figures->step_ms, (2 * 10 + 20) / 3.0, 1e-9);
  EXPECT_NEAR(figures->samples_per_s, 2 * 128 / (1e-3 * figures->step_ms), 1e-6);
  EXPECT_DOUBLE_EQ(FiguresOf(TestConfiguration("ps-sync", 2), records)->samples_per_s, 512 / 0.04)
      << "workers that wait for one another end together";
}

TEST(Summarise, WaitIsUntilTheLastRanksBegin) {
  StepRecord early{.rank = 0}, late{.rank = 1};
  early.buckets = {{.bucket = 0, .begin_ns = 0, .end_ns = 10 * kNsPerMs},
                   {.bucket = 1, .begin_ns = 10 * kNsPerMs, .end_ns = 15 * kNsPerMs}};
  late.buckets = {{.bucket = 0, .begin_ns = 6 * kNsPerMs, .end_ns = 10 * kNsPerMs},
                  {.bucket = 1, .begin_ns = 11 * kNsPerMs, .end_ns = 15 * kNsPerMs}};
  EXPECT_DOUBLE_EQ(WaitMs({&early, &late}, 0), 6 + 1);
  EXPECT_DOUBLE_EQ(WaitMs({&early, &late}, 1), 0);
}

TEST(Summarise, WaitsThatOverlapCountOnceAndEndWithTheExchange) {
  StepRecord early{.rank = 0}, late{.rank = 1};
  early.buckets = {{.bucket = 0, .begin_ns = 0, .end_ns = 5 * kNsPerMs},
                   {.bucket = 1, .begin_ns = 2 * kNsPerMs, .end_ns = 20 * kNsPerMs}};
  late.buckets = {{.bucket = 0, .begin_ns = 8 * kNsPerMs, .end_ns = 9 * kNsPerMs},
                  {.bucket = 1, .begin_ns = 8 * kNsPerMs, .end_ns = 20 * kNsPerMs}};
  EXPECT_DOUBLE_EQ(WaitMs({&early, &late}, 0), 8);  // [0, 5] and [2, 8]
}

TEST(Summarise, DetectsDifferentReplicas) {
  RunRecords records = Records(2);
  EXPECT_EQ(FiguresOf(TestConfiguration("ring", 2), records)->replicas_equal, true);
  records.ranks[1].weights_hash = "other";
  EXPECT_EQ(FiguresOf(TestConfiguration("ring", 2), records)->replicas_equal, false);
  EXPECT_FALSE(FiguresOf(TestConfiguration("none", 2), records)->replicas_equal.has_value());
}

TEST(Summarise, StalenessIsTheMeanOverAllPushes) {
  RunRecords records = Records(2);
  records.ranks[0].pushes = 10;
  records.ranks[0].staleness_sum = 5;
  records.ranks[0].staleness_max = 2;
  records.ranks[1].pushes = 30;
  records.ranks[1].staleness_sum = 35;
  records.ranks[1].staleness_max = 4;
  const auto figures = FiguresOf(TestConfiguration("ps-async", 2), records);
  EXPECT_DOUBLE_EQ(*figures->staleness_mean, 1.0);
  EXPECT_EQ(*figures->staleness_max, 4);
}

TEST(Summarise, ServerBytesArePerStep) {
  RunRecords records = Records(2);
  // 2 workers, 2 buckets, 5 steps.
  records.servers = {
      {.pushes = 20, .payload_rx_bytes = 5000, .payload_tx_bytes = 5000, .peak_memory_mb = 50}};
  const auto figures = FiguresOf(TestConfiguration("ps-sync", 2), records);
  EXPECT_DOUBLE_EQ(*figures->server_payload_bytes, 2000);
  EXPECT_DOUBLE_EQ(*figures->server_peak_memory_mb, 50);
}

TEST(Summarise, BytesOfServersThatHaveOnlyRowsArePerStep) {
  RunRecords records = Records(2);
  records.servers = {{.payload_rx_bytes = 600, .payload_tx_bytes = 300}};  // in 3 steps
  EXPECT_DOUBLE_EQ(*FiguresOf(TestConfiguration("hybrid", 2), records)->server_payload_bytes, 300);
  for (RankResult& rank : records.ranks) rank.bucket_elements.clear();  // a model that has only tables
  EXPECT_DOUBLE_EQ(*FiguresOf(TestConfiguration("ps-sync", 2), records)->server_payload_bytes, 300);
}

TEST(Summarise, TheoryOfHybridIsItsRingAndTheRowsOfAllRanks) {
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 4e6};
  ConfigurationRuns runs = Runs("hybrid", 2, {10});
  RunRecords records = Records(2);
  records.ranks[0].rows = {.pushed_bytes = 500, .asked_bytes = 100, .pulled_bytes = 400};
  records.ranks[1].rows = {.pushed_bytes = 700, .asked_bytes = 140, .pulled_bytes = 560};
  runs.sample = SampleOf(records);
  EXPECT_DOUBLE_EQ(runs.sample.rows.pushed_bytes, 600);
  EXPECT_EQ(runs.sample.parameters, 1000);
  const auto rows = Summarise("run", {runs}, wires);
  EXPECT_NEAR(*rows[0].predicted_payload_bytes, 4000 + 600 + 120, 1e-9);
  // The ring: 2 buckets with 2 messages each. One of the two workers uses a link to the server.
  EXPECT_NEAR(*rows[0].predicted_comm_ms, 4 + 1 + 2 + (480 + 720) / 4e3, 1e-9);
}

TEST(Summarise, TheoryOfShardsCountsTheWeightsThatWereGathered) {
  ConfigurationRuns zero2 = Runs("zero2", 4, {10}), fsdp = Runs("fsdp", 4, {10});
  fsdp.sample.gathered_elements = 1500;
  for (ConfigurationRuns* runs : {&zero2, &fsdp}) runs->configuration.training.micro_batches = 3;
  // (N-1)/N of 3 reduced gradients of 1000 elements, and of the weights once or 1.5 times.
  const auto rows = Summarise("run", {zero2, fsdp}, std::nullopt);
  EXPECT_NEAR(*rows[0].predicted_payload_bytes, .75 * 4 * (3000 + 1000), 1e-9);
  EXPECT_NEAR(*rows[1].predicted_payload_bytes, .75 * 4 * (3000 + 1500), 1e-9);
}

TEST(Summarise, TheoryOfHybridShardsAddsTheSumsOverTheCopies) {
  ConfigurationRuns zero1 = Runs("zero1", 4, {10}), fsdp = Runs("fsdp", 4, {10});
  fsdp.sample.gathered_elements = 1500;
  for (ConfigurationRuns* runs : {&zero1, &fsdp}) runs->configuration.training.dp_shard = 2;
  const auto rows = Summarise("run", {zero1, fsdp}, Wires{.bytes_per_s = 4e6});
  // (S-1)/S of what is reduced and gathered, and 2 (C-1)/C of a shard of 500 elements.
  EXPECT_NEAR(*rows[0].predicted_payload_bytes, 4 * (.5 * 2000 + 500), 1e-9);
  EXPECT_NEAR(*rows[1].predicted_payload_bytes, 4 * (.5 * 2500 + 500), 1e-9);
  EXPECT_FALSE(rows[0].predicted_comm_ms.has_value()) << "the time of theory is of one ring";
}

TEST(Summarise, CountsDroppedGradientsButNotTheirSamples) {
  RunRecords records = Records(3);
  records.servers = {
      {.pushes = 12, .payload_rx_bytes = 3000, .payload_tx_bytes = 6000, .dropped_gradients = 2}};
  records.steps[2][1].dropped = true;  // it skips the last step
  records.steps[2].resize(2);
  const auto figures = FiguresOf(TestConfiguration("ps-backup:1", 3), records).value();
  EXPECT_EQ(figures.samples, 4 * 128);
  EXPECT_DOUBLE_EQ(*figures.dropped_gradients, 2);
  // 12 pushes: 3 steps with two buckets of two workers.
  EXPECT_DOUBLE_EQ(*figures.server_payload_bytes, 3000);
  EXPECT_FALSE(FiguresOf(TestConfiguration("ps-sync", 3), records)->dropped_gradients.has_value());
}

TEST(Summarise, ARankWithoutMeasuredStepsIsAnError) {
  RunRecords records = Records(2);
  records.steps[1].resize(1);
  EXPECT_EQ(FiguresOf(TestConfiguration("ring", 2), records).status().message(),
            "ring x 2: rank 1 has no measured steps");
}

TEST(Summarise, AResumedTrainingCountsAllItsSamples) {
  Configuration ring = TestConfiguration("ring", 2);
  ring.training.resume = "step20";
  RunRecords records = Records(2);  // 512 measured samples
  records.ranks[0].curve = {{.samples = 5120, .test_accuracy = 0.8}};
  const auto figures = FiguresOf(ring, records).value();
  EXPECT_EQ(figures.samples, 512);
  const auto rows = Summarise("run", {{.configuration = ring, .accuracy = {figures}}}, {});
  EXPECT_EQ(rows[0].trained_samples, 5120);
}

TEST(Summarise, AFinishedTrainingIsNotAnInvalidOne) {
  Configuration ring = TestConfiguration("ring", 2);
  ring.training.resume = "step20";
  RunRecords records = Records(2);
  for (auto& steps : records.steps) steps.clear();
  records.ranks[0].curve = {{.samples = 5120, .test_accuracy = 0.8}};
  EXPECT_EQ(
      FiguresOf(ring, records).status(),
      absl::OutOfRangeError("--resume step20: this training is finished, with test accuracy 0.8000; nothing "
                            "is left to train unless you give more --epochs, --samples or --steps"));
}

TEST(Summarise, CostIsTheDifferenceToNoneOfTheSameRounds) {
  const auto rows = Summarise(
      "run", {Runs("single", 1, {10, 20}), Runs("none", 2, {10, 20}), Runs("ring", 2, {13, 23})}, {});
  EXPECT_NEAR(*rows[2].cost_against_none_ms, 3, 1e-9);
  EXPECT_NEAR(rows[2].cost_against_none_95->low, 3, 1e-9);
  EXPECT_NEAR(rows[2].cost_against_none_95->high, 3, 1e-9);
  EXPECT_FALSE(rows[1].cost_against_none_ms.has_value());
}

TEST(Summarise, ChartFiguresHaveIntervalsOverRounds) {
  ConfigurationRuns runs = Runs("ring", 2, {10, 20, 30});
  for (size_t round = 0; round < runs.cost.size(); ++round) {
    runs.cost[round].comm_busy_ms = 5 + static_cast<double>(round);
    runs.cost[round].wait_ms = 1;
  }
  const auto rows = Summarise("run", {runs}, {});
  const auto interval = [&](const std::string& figure) {
    for (const FigureInterval& one : rows[0].intervals_95) {
      if (one.figure == figure) return one.interval;
    }
    ADD_FAILURE() << figure;
    return Interval();
  };
  EXPECT_EQ(interval("step_ms").low, GeometricMeanInterval({10, 20, 30})->low);
  EXPECT_EQ(interval("step_ms").high, GeometricMeanInterval({10, 20, 30})->high);
  EXPECT_EQ(interval("comm_moving_ms").low, MeanInterval({4, 5, 6})->low);
  for (const FigureInterval& one : rows[0].intervals_95)  // no server
    EXPECT_STRNE(one.figure, "server_payload_bytes");
  EXPECT_TRUE(Summarise("run", {Runs("ring", 2, {10})}, {})[0].intervals_95.empty());
}

TEST(Summarise, SpeedUpIsRelativeToSingleAndBlankIfOversubscribed) {
  const auto rows = Summarise(
      "run", {Runs("single", 1, {10, 10}, 2), Runs("none", 2, {10, 10}, 2), Runs("none", 4, {20, 20}, 2)},
      {});
  EXPECT_NEAR(*rows[1].speedup, 2, 1e-9);
  EXPECT_NEAR(*rows[1].efficiency, 1, 1e-9);
  EXPECT_FALSE(rows[2].speedup.has_value());
  EXPECT_FALSE(rows[2].efficiency.has_value());
  EXPECT_EQ(rows[2].note, "oversubscribed");
  EXPECT_TRUE(rows[2].valid);
}

TEST(Summarise, ADisturbedRowIsNotValid) {
  ConfigurationRuns runs = Runs("single", 1, {10, 10});
  runs.cost[1].foreign_cpu_pct = 60;
  const auto rows = Summarise("run", {runs}, {});
  EXPECT_FALSE(rows[0].valid);
  EXPECT_NE(rows[0].note.find("other programs used 60%"), std::string::npos) << rows[0].note;
}

TEST(Summarise, RanksThatShareAGpuAreNotValid) {
  ConfigurationRuns runs{.configuration = TestConfiguration("ring", 3)};
  RunRecords records = Records(3);
  for (int rank = 0; rank < 3; ++rank) records.ranks[rank].device = rank == 1 ? "cuda:1" : "cuda:0";
  const auto row = [&] {
    runs.cost = {*FiguresOf(runs.configuration, records)};
    return Summarise("run", {runs}, {})[0];
  };
  EXPECT_TRUE(row().valid) << "GPUs of several machines have the same names";
  runs.configuration.training.oversubscribe = true;
  EXPECT_FALSE(row().valid);
  EXPECT_EQ(row().note, "functional, not a measurement: 3 ranks share 2 GPUs");
  records.ranks[2].device = "cuda:2";
  EXPECT_TRUE(row().valid);
}

TEST(Summarise, RanksOfOneProcessShareALink) {
  const Wires links{.latency_s = 1e-3, .bytes_per_s = 4e6};
  Wires loopback = links;
  loopback.medium_bytes_per_s = 8e6;
  const auto row = [](const std::string& strategy, int workers, const Wires& wires, const LinkReport& link) {
    ConfigurationRuns runs = Runs(strategy, workers, {10});
    runs.configuration.training.ranks_per_process = 2;
    return Summarise("run", {runs}, wires, link)[0];
  };
  const LinkReport link{.bits_per_s = 32e6};
  EXPECT_EQ(row("ring", 4, loopback, {}).note, "2 ranks per process");
  EXPECT_TRUE(row("star", 4, loopback, {}).predicted_comm_ms.has_value());
  // Each link carries one rank's traffic of a ring; for other strategies there is no theory.
  EXPECT_EQ(row("ring", 4, links, link).note, "2 ranks per process, on one link");
  EXPECT_TRUE(row("ring", 4, links, link).predicted_comm_ms.has_value());
  EXPECT_FALSE(row("star", 4, links, link).predicted_comm_ms.has_value());
  EXPECT_FALSE(row("ps-sync", 4, links, link).predicted_comm_ms.has_value());
  EXPECT_EQ(row("ring", 2, links, link).note, "2 ranks in one process, which use no link");
  EXPECT_FALSE(row("ring", 2, links, link).predicted_comm_ms.has_value());
}

TEST(Summarise, WireBytesExcludeRanksBesideAServer) {
  ConfigurationRuns runs{.configuration = TestConfiguration("ps-sync", 4)};
  RunRecords records = Records(4);
  for (int rank = 0; rank < 4; ++rank) records.ranks[rank].wire_tx_bytes = rank < 2 ? 20000 : 2000 + rank;
  EXPECT_DOUBLE_EQ(*FiguresOf(runs.configuration, records)->wire_tx_bytes, (20000 + 2002 + 2003) / 3.0 / 2);
  runs.configuration.training.ranks_per_process = 2;  // two ranks are beside the server
  EXPECT_DOUBLE_EQ(*FiguresOf(runs.configuration, records)->wire_tx_bytes, (2002 + 2003) / 2.0 / 2);
}

TEST(Summarise, TheoryAppliesIfRank0SharesMemoryWithItsServerButNotIfAllDo) {
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 4e6};
  const auto predicted = [&](const std::vector<std::string>& others) {
    ConfigurationRuns runs{.configuration = TestConfiguration("ps-sync", 2)};
    RunRecords records = Records(2);
    records.ranks[0].transport = "shm";
    records.ranks[0].wires = {"shared memory"};
    records.ranks[1].wires = others;
    runs.sample = records.ranks.front();
    runs.cost.push_back(*FiguresOf(runs.configuration, records));
    return Summarise("run", {runs}, wires)[0].predicted_comm_ms;
  };
  EXPECT_EQ(predicted({"gRPC over TCP"}),
            Summarise("run", {Runs("ps-sync", 2, {10})}, wires)[0].predicted_comm_ms);
  EXPECT_FALSE(predicted({"shared memory"}).has_value());
}

TEST(Summarise, TheoryUsesTheMeasuredRateOfTheServersWire) {
  Wires wires{
      .bytes_per_s = 8e6, .medium_bytes_per_s = 8e6, .grpc_bytes_per_s = 2e6, .stream_bytes_per_s = 4e6};
  const auto predicted = [&wires](const std::string& strategy, const std::string& wire) {
    ConfigurationRuns runs = Runs(strategy, 2, {10});
    runs.configuration.training.server_wire = wire;
    return *Summarise("run", {runs}, wires)[0].predicted_comm_ms;
  };
  EXPECT_DOUBLE_EQ(predicted("ps-sync", "grpc"), 2 * predicted("ps-sync", "stream"));
  const double ring = predicted("ring", "grpc"), grpc = predicted("ps-sync", "grpc");
  wires.grpc_bytes_per_s = wires.stream_bytes_per_s = 0;  // not measured
  EXPECT_EQ(predicted("ring", "grpc"), ring);
  EXPECT_DOUBLE_EQ(predicted("ps-sync", "grpc"), grpc / 4) << "the loopback's";
  EXPECT_EQ(predicted("ps-sync", "stream"), predicted("ps-sync", "grpc"));
}

TEST(Summarise, ServersOfAVirtualClusterShareTheMachinesProcessors) {
  const Wires wires{.bytes_per_s = 1e9, .grpc_bytes_per_s = 2e6};  // links do not limit
  const auto predicted = [&wires](int servers, const std::string& placement, bool on_machines) {
    ConfigurationRuns runs = Runs("ps-sync", 4, {10});
    runs.configuration.training.servers = servers;
    runs.configuration.training.server_placement = placement;
    runs.configuration.on_machines = on_machines;
    runs.configuration.per_machine = on_machines ? 1 : 0;
    return Summarise("run", {runs}, wires)[0].predicted_comm_ms.value_or(-1);
  };
  const double one = predicted(1, "dedicated", false);
  EXPECT_NEAR(predicted(2, "dedicated", false), one, 0.01 * one);
  EXPECT_NEAR(predicted(2, "dedicated", true), one / 2, 0.01 * one) << "each has its own processors";
  EXPECT_NEAR(predicted(2, "rank0", false), predicted(1, "rank0", false), 0.01 * one);
}

TEST(Summarise, PredictsCommunicationByBucket) {
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 4e6};
  const auto rows = Summarise("run", {Runs("ring", 2, {10})}, wires);
  // Two buckets with 2 messages each; 4000 bytes in total at 4 MB/s.
  EXPECT_NEAR(*rows[0].predicted_comm_ms, 4 + 1, 1e-9);
  EXPECT_NEAR(*rows[0].predicted_payload_bytes, 4000, 1e-9);
}

TEST(Summarise, AccuracyTrainingsDoNotTouchTheCost) {
  ConfigurationRuns runs = Runs("ring", 2, {10, 10});
  RunRecords training = Records(2, 50);
  training.ranks[0].curve = {{.samples = 100, .test_accuracy = 0.8}, {.samples = 200, .test_accuracy = 0.85}};
  runs.accuracy = {*FiguresOf(runs.configuration, training)};
  const auto rows = Summarise("run", {runs}, {});
  EXPECT_DOUBLE_EQ(rows[0].mean.step_ms, 10);
  EXPECT_DOUBLE_EQ(*rows[0].test_accuracy, 0.85);
  EXPECT_EQ(rows[0].trainings, 1);
}

std::string TextCell(const SummaryRow& row, const std::string& column) {
  for (const Cell& cell : Cells(row)) {
    if (cell.column != column) continue;
    if (const auto* whole = std::get_if<int64_t>(&cell.value)) return absl::StrCat(*whole);
    const auto* text = std::get_if<std::string>(&cell.value);
    return text != nullptr ? *text : "";
  }
  return "no such column";
}

TEST(Summarise, NamesTheWiresAndTheMachinesOfAllRanks) {
  ConfigurationRuns runs{.configuration = TestConfiguration("ring", 3)};
  RunRecords records = Records(3);
  const std::vector<std::vector<std::string>> wires = {
      {"TCP"}, {"shared memory", "TCP"}, {"one of tomorrow"}};
  for (size_t rank = 0; rank < 3; ++rank) {
    records.ranks[rank].wires = wires[rank];
    records.ranks[rank].host = rank == 0 ? "first" : "second";
  }
  runs.cost = {*FiguresOf(runs.configuration, records)};
  const SummaryRow row = Summarise("run", {runs}, {}).front();
  EXPECT_EQ(TextCell(row, "wire"), "shared memory, TCP, one of tomorrow");
  EXPECT_EQ(TextCell(row, "machines"), "2");
}

TEST(Summarise, NamesEveryWireOfSeveralRounds) {
  ConfigurationRuns runs{.configuration = TestConfiguration("ring", 2)};
  for (const char* wire : {"TCP", "shared memory"}) {
    RunRecords records = Records(2);
    for (RankResult& rank : records.ranks) rank.wires = {wire};
    runs.cost.push_back(*FiguresOf(runs.configuration, records));
  }
  EXPECT_EQ(TextCell(Summarise("run", {runs}, {}).front(), "wire"), "shared memory, TCP");
}

TEST(Summarise, RecordsOfEarlierVersionsHaveNeitherWireNorMachines) {
  const SummaryRow row = Summarise("run", {Runs("ring", 2, {10})}, {}).front();
  EXPECT_EQ(TextCell(row, "wire"), "");
  EXPECT_EQ(TextCell(row, "machines"), "");
}

TEST(Summarise, HasTheDocumentedColumns) {
  std::string columns;
  for (const Cell& cell : Cells(SummaryRow{}))
    columns += std::string(columns.empty() ? "" : " ") + cell.column;
  EXPECT_EQ(columns,
            "schema_version run_id strategy workers servers placement backend algorithm transport payload "
            "device shaping link_mbps model parameters batch_per_worker global_batch bucket_mb optimizer lr "
            "seed repeats steps samples_per_s samples_per_s_lo95 samples_per_s_hi95 speedup efficiency "
            "step_ms step_ms_p10 step_ms_p90 compute_ms comm_busy_ms wait_ms exposed_comm_ms "
            "predicted_comm_ms payload_tx_bytes_per_worker payload_rx_bytes_per_worker "
            "predicted_payload_bytes_per_worker server_payload_bytes wire_tx_bytes_per_worker staleness_mean "
            "staleness_max dropped_gradients loss test_accuracy time_to_target_s replicas_equal "
            "worker_peak_memory_mb server_peak_memory_mb foreign_cpu_pct basis valid note lr_tried "
            "time_scale scaling workers_per_push ps_schedule tokens_per_s machines wire most_samples_share "
            "layout program micro_batches predicted_bubble_fraction bubble_fraction params_mb grads_mb "
            "optimizer_mb activations_mb predicted_peak_memory_mb cuts copy_streams");
}

}  // namespace
}  // namespace psring
