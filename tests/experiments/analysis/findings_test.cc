// Sentences about theory, bytes and accuracy describe the rows: their servers, schedule, optimizer and rate.
#include "experiments/analysis/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "experiments/analysis/launch_figures.h"
#include "experiments/analysis/verdict.h"
#include "experiments/design/estimate.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

SummaryRow RuleRow(const std::string& strategy, int workers = 4) {
  SummaryRow row{.configuration = TestConfiguration(strategy, workers, /*cores=*/8)};
  row.configuration.update = {.strategy = strategy, .optimizer = "momentum", .lr = 0.05};
  return row;
}

SummaryRow ServerRowOf(const std::string& placement, int servers, const std::string& schedule) {
  SummaryRow row = RuleRow("ps-sync");
  row.configuration.training.server_placement = placement;
  row.configuration.training.servers = servers;
  row.configuration.training.ps_schedule = schedule;
  return row;
}

std::string LawOf(const SummaryRow& server) {
  return absl::StrJoin(ServerLaw({RuleRow("ring"), server}), "\n");
}

std::string AllOfThem(const std::vector<SummaryRow>& rows) {
  return absl::StrJoin(Findings(rows, std::nullopt, 8), "\n");
}

TEST(Findings, SayWhatDisturbedARow) {
  std::vector<SummaryRow> rows = {RuleRow("ring"), RuleRow("ps-sync"), RuleRow("none")};
  rows[0].valid = false;
  rows[0].other_psring = 123;
  EXPECT_THAT(AllOfThem(rows), Has("Another psring ran during ring x 4. Repeat the measurement when it has"));
  EXPECT_THAT(AllOfThem(rows), Lacks("Other programs used more than a third"));
  rows[1].valid = false;
  rows[1].foreign_cpu_pct = 50;
  EXPECT_THAT(AllOfThem(rows),
              Has("Other programs used more than a third of the processors during ps-sync x 4. Repeat"));
  rows[1].mean.gpus_shared = 1;
  EXPECT_THAT(AllOfThem(rows), Lacks("Other programs"));
}

TEST(ServerLaw, FollowsPlacementAndSchedule) {
  EXPECT_THAT(
      LawOf(ServerRowOf("rank0", 1, "pipelined")),
      Has("In theory, with large gradients, ps-sync (one server on rank 0's host; push and pull at the same "
          "time) exchanges 2.00 times as long as ring with 4 workers."));
  EXPECT_THAT(LawOf(ServerRowOf("rank0", 1, "serial")),
              Has("(one server on rank 0's host; push, then pull) exchanges 4.00 times as long as ring"));
  EXPECT_THAT(LawOf(ServerRowOf("dedicated", 1, "serial")),
              Has("(one dedicated server; push, then pull) exchanges 5.33 times as long as ring"));
  EXPECT_THAT(LawOf(ServerRowOf("dedicated", 4, "serial")),
              Has("(4 dedicated servers; push, then pull) exchanges 1.33"));
  EXPECT_THAT(LawOf(ServerRowOf("colocated", 4, "serial")),
              Has("(4 servers on the workers' hosts; push, then pull) exchanges 1.00 times as long as ring"));
  EXPECT_THAT(LawOf(ServerRowOf("rank0", 8, "pipelined")), Has("(8 servers that share rank 0's link; "));
}

TEST(ServerLaw, LeadsFromTheoryToTheStep) {
  std::vector<SummaryRow> rows = {RuleRow("ring"), ServerRowOf("dedicated", 1, "pipelined")};
  for (SummaryRow& row : rows) {
    const double times = &row == &rows.back() ? 3 : 1;
    row.measured_cost = true;
    row.predicted_comm_ms = 100 * times;
    row.mean.comm_busy_ms = 110 * times;
    row.mean.wait_ms = times == 1 ? 10 : 20;
    row.mean.samples_per_s = 400 / times + 100;
  }
  EXPECT_THAT(
      ServerLaw(rows),
      ElementsAre(Has("ps-sync (one dedicated server; push and pull at the same time) exchanges "
                      "2.67 times as long as ring with 4 workers. With this run's buckets, 3.00 "
                      "times in theory. Measured: the exchange 3.10 times (without waiting for others); "
                      "the step, which also computes, 2.14 times.")));
}

TEST(ServerLaw, BeginsWithTheLargestRatioAndNamesAPlacementOnce) {
  EXPECT_THAT(
      ServerLaw({RuleRow("ring", 2), RuleRow("ps-sync", 2), RuleRow("ring", 8), RuleRow("ps-sync", 8)}),
      ElementsAre(Has("one server on rank 0's host", "with 8 workers"),
                  Has("ps-sync exchanges 1.00 times as long as ring with 2 workers")));
}

TEST(ServerLaw, IsNotAboutRowsOfTables) {
  std::vector<SummaryRow> rows = {RuleRow("ring"), ServerRowOf("rank0", 1, "pipelined"), RuleRow("hybrid")};
  EXPECT_THAT(ServerLaw(rows), ElementsAre(Has("ps-sync"))) << "hybrid is no server of gradients";
  for (SummaryRow& row : rows) row.configuration.model.has_tables = true;
  EXPECT_THAT(ServerLaw(rows), IsEmpty());
}

TEST(ServerLaw, ComparesWithTheAllReduceThatRan) {
  EXPECT_THAT(ServerLaw({RuleRow("star"), ServerRowOf("rank0", 1, "serial")}),
              ElementsAre(Has("1.00 times as long as star with 4 workers")));
  EXPECT_THAT(ServerLaw({RuleRow("none"), ServerRowOf("rank0", 1, "serial")}), IsEmpty());
  EXPECT_THAT(ServerLaw({RuleRow("ring", 2), ServerRowOf("rank0", 1, "serial")}), IsEmpty())
      << "other worker counts";
}

TEST(Findings, NameTheUpdateRulesOfAccuraciesIfTheyDiffer) {
  SummaryRow ring = RuleRow("ring"), late = RuleRow("ps-async");
  ring.test_accuracy = 0.86;
  late.test_accuracy = 0.84;
  ring.trainings = late.trainings = 1;
  EXPECT_THAT(AllOfThem({ring, late}), Has("ring x 4 0.8600, ps-async x 4 0.8400"));
  late.configuration.update = {.strategy = "ps-async", .optimizer = "sgd", .lr = 0.1};
  const std::string text = AllOfThem({ring, late});
  EXPECT_THAT(text, Has("ring x 4 (momentum, lr 0.05) 0.8600, ps-async x 4 (sgd, lr 0.1) 0.8400",
                        "update the weights by different rules"));
  EXPECT_THAT(text, Lacks("make fewer updates")) << "there is one synchronous worker count";
}

TEST(Findings, NameTheBytesOfEveryStrategy) {
  SummaryRow ring = RuleRow("ring"), server = RuleRow("ps-sync");
  ring.predicted_payload_bytes = ring.mean.payload_tx_bytes = 11.18e6;
  server.predicted_payload_bytes = server.mean.payload_tx_bytes = 7.45e6;
  EXPECT_THAT(AllOfThem({ring, server}), Has("MB per worker and step: ring x 4 11.18, ps-sync x 4 7.45."));
}

TEST(NoteOf, IsInBothLanguages) {
  SummaryRow row = RuleRow("ring");
  row.configuration.oversubscribed = true;
  row.configuration.training.jitter_ms = "exp:5";
  row.foreign_cpu_pct = 40;
  EXPECT_EQ(NoteOf(row), "oversubscribed; other programs used 40% of the processors; jitter exp:5 ms");
  EXPECT_EQ(InLanguage(Language::kChinese, [&] { return NoteOf(row); }),
            "核数不足；其他程序占用了 40% 的处理器；抖动 exp:5 毫秒");
}

// ring with 100 samples/s, and ps-sync with these over gRPC and over plain sockets.
std::string WireTextOf(double grpc, double sockets, double spread = .001) {
  std::vector<SummaryRow> rows = {RuleRow("ring"), RuleRow("ps-sync"), RuleRow("ps-sync")};
  rows[2].configuration.training.server_wire = "stream";
  const double speeds[] = {100, grpc, sockets};
  std::vector<const SummaryRow*> candidates;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].mean.wires = {i == 1 ? "gRPC over TCP" : "TCP"};
    for (const double factor : {1 - spread, 1., 1 + spread})
      rows[i].round_samples_per_s.push_back((i == 2 ? 2 - factor : factor) * speeds[i]);
    candidates.push_back(&rows[i]);
  }
  return ServerWireText(candidates);
}

TEST(ServerWireText, SaysWhetherTheWireOrTheSchemeDecides) {
  EXPECT_EQ(WireTextOf(50, 62.5),
            "with gRPC ring is 2.00 times as fast as ps-sync, over the same sockets 1.60 times: the scheme "
            "decides more than the wire");
  EXPECT_THAT(WireTextOf(50, 80), Has("over the same sockets 1.25 times: the wire decides more"));
  EXPECT_THAT(WireTextOf(80, 125),
              Has("with gRPC ring is 1.25 times as fast as ps-sync, over the same sockets 0.80 times: the "
                  "wire decides more"))
      << "another winner";
  EXPECT_EQ(WireTextOf(80, 81, .2),
            "ps-sync is not shown to be faster over plain sockets than over gRPC, or slower");
}

TEST(ServerWireText, NeedsTheSameServersOverBothWires) {
  SummaryRow ring = RuleRow("ring"), grpc = ServerRowOf("rank0", 1, "pipelined"),
             sockets = ServerRowOf("rank0", 2, "pipelined");
  sockets.configuration.training.server_wire = "stream";
  for (SummaryRow* row : {&ring, &grpc}) row->round_samples_per_s = {100, 101, 102};
  sockets.round_samples_per_s = {150, 151, 152};
  EXPECT_EQ(ServerWireText({&sockets, &ring, &grpc}), "");
  sockets.configuration.training.servers = 1;
  EXPECT_EQ(ServerWireText({&sockets, &ring, &grpc}),
            "over plain sockets ps-sync is 1.50 times as fast as over gRPC")
      << "the ring is not known to use TCP";
}

TEST(ServerWireRates, NameWhatWasMeasured) {
  EXPECT_EQ(ServerWireRates({.bytes_per_s = 1e9}), "");
  EXPECT_THAT(ServerWireRates({.grpc_bytes_per_s = 2.5e9, .stream_bytes_per_s = 4e9}),
              Has("pulls at 2.50 GB/s over grpc and 4.00 GB/s over stream (measured)"));
}

constexpr Wires kMeasuredGigabit{.latency_s = 1e-4, .bytes_per_s = 120e6};

SummaryRow ServerRow(int buckets, const std::string& schedule, const Wires& wires) {
  SummaryRow row{.configuration = TestConfiguration("ps-sync", 4)};
  row.configuration.training.ps_schedule = schedule;
  row.configuration.update.momentum = 0.9;
  row.sample.bucket_elements.assign(static_cast<size_t>(buckets), 3'000'000 / buckets);
  const std::vector<double> bytes(static_cast<size_t>(buckets), 12e6 / buckets);
  row.predicted_comm_ms =
      1e3 * MeanExchangeSeconds(PatternOf(row.configuration, Scheme::kServerSync), bytes, wires);
  return row;
}

TEST(BucketFindings, NameTheTimesAndTheReasonWhereFewBucketsDifferFromTheLaw) {
  const auto of = [](int buckets, const std::string& schedule) {
    return BucketFindings({ServerRow(buckets, schedule, kMeasuredGigabit)}, kMeasuredGigabit);
  };
  EXPECT_THAT(
      of(2, "pipelined"),
      ElementsAre(StartsWith(
          "For the actual buckets (6, 6 MB), theory predicts longer exchanges than the formula for large "
          "gradients (ps-sync with 4 workers: 450 ms until the last worker has its weights (mean over "
          "workers: 413 ms), not 300 ms). The weights of a bucket cannot leave before its last gradient")));
  EXPECT_THAT(of(100, "pipelined"), IsEmpty());
  EXPECT_THAT(of(2, "serial"), IsEmpty());
  SummaryRow row = ServerRow(1, "pipelined", kMeasuredGigabit);
  row.predicted_comm_ms = 1e3 * ExchangeSeconds(PatternOf(row.configuration, Scheme::kServerSync),
                                                std::vector<double>{12e6}, kMeasuredGigabit);
  EXPECT_THAT(BucketFindings({row}, kMeasuredGigabit),
              ElementsAre(testing::HasSubstr("(ps-sync with 4 workers: 600 ms, not 300 ms). The weights")))
      << "all workers have their weights at the same time";
}

TEST(BucketFindings, NameTheUpdateIfItIsTheDifference) {
  Wires wires = kMeasuredGigabit;
  wires.update_s_per_byte = 10e-9;
  EXPECT_THAT(BucketFindings({ServerRow(1, "serial", wires)}, wires),
              ElementsAre(testing::HasSubstr(
                  "720 ms until the last worker has its weights (mean over "
                  "workers: 645 ms), not 600 ms). The formula ignores the server's updates")));
}

TEST(BucketFindings, AreEmptyWithoutMeasuredLinks) {
  EXPECT_THAT(BucketFindings({ServerRow(2, "pipelined", kMeasuredGigabit)}, std::nullopt), IsEmpty());
}

// From which rate distributing helps. Every rate is computed again by hand: 4 workers expose
// 2(N-1)a + 2(N-1)/N M/B + (N-1)/N M g, for B.

double RingRate(double allowed_s) {
  return 8 * 1.5 * kGradientBytes / (allowed_s - 6 * 1e-4 - 0.75 * kGradientBytes * 1e-10);
}

std::optional<UsefulRate> RateOf(const std::vector<SummaryRow>& rows, const Wires& wires = kGigabitWires) {
  return LeastUsefulRate(rows[2], rows[0], ComputingRow(rows, rows[2], rows[0]), wires);
}

std::string Sentence(const std::vector<SummaryRow>& rows) {
  return WorthDistributing(rows, rows[2], rows[0], kGigabitWires).text;
}
std::string ChineseSentence(const std::vector<SummaryRow>& rows) {
  return InLanguage(Language::kChinese, [&] { return Sentence(rows); });
}

TEST(UsefulRate, IsThatAtWhichTheWorkersMatchOneProcess) {
  const std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  // 4 workers match one if the step takes 4 x 100 ms, so 300 ms may be exposed.
  const auto from = RateOf(rows).value();
  EXPECT_NEAR(from.bits_per_s, RingRate(0.3), 2e-3 * RingRate(0.3));
  EXPECT_EQ(from.low, from.bits_per_s) << "single has no interval";
  EXPECT_EQ(from.high, from.bits_per_s);
  EXPECT_EQ(Sentence(rows), "from 4.2 Gbit/s per link (derived)");
  EXPECT_EQ(ChineseSentence(rows), "每条链路达到 4.2 Gbit/s 起（推导）");
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], kGigabitWires).rate, "4.2gbit");
}

TEST(UsefulRate, CountsOnlyTheExposedPartOfAnAllReduce) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[2].mean.bucket_ready_ms = {40};  // 60 ms before the end of backward
  rows[2].mean.computed_ms = 100;
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.36), 2e-3 * RingRate(0.36));
}

TEST(UsefulRate, DoesNotUseTheComputingOfOversubscribedWorkers) {
  std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  EXPECT_EQ(&ComputingRow(rows, rows[2], rows[0]), &rows.back()) << "none with 2 workers";
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.3), 2e-3 * RingRate(0.3));
  EXPECT_EQ(Sentence(rows), "from 4.2 Gbit/s per link, with one core per worker (derived)");
  EXPECT_EQ(ChineseSentence(rows), "每条链路达到 4.2 Gbit/s 起，每个 worker 各有一核（推导）");
  // Backward, too, takes half the time: its last 120 ms are 60 ms.
  rows[2].mean.bucket_ready_ms = {80};
  rows[2].mean.computed_ms = 200;
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.36), 2e-3 * RingRate(0.36));
}

TEST(UsefulRate, UsesTheComputingOfOneProcessIfAllOthersWereOversubscribed) {
  std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  rows.back().configuration.oversubscribed = true;
  EXPECT_EQ(&ComputingRow(rows, rows[2], rows[0]), &rows[0]);
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.3), 2e-3 * RingRate(0.3));
}

TEST(UsefulRate, WithAFixedGlobalBatchAWorkerComputesItsShare) {
  std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  // 32 samples a step in all: one process takes 100 ms, a worker of two 50 ms, and one of four 25 ms.
  for (SummaryRow& row : rows) row.mean.samples_per_s = 32e3 / row.mean.step_ms;
  rows.back() = TimedRow("none", 2, 50);
  rows.back().mean.samples_per_s = 32e3 / 50;
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.075), 2e-3 * RingRate(0.075));
}

TEST(UsefulRate, IsARangeIfTheIntervalOfOneProcessIsWide) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[0].samples_per_s_95 = Interval{250, 400};  // 512 and 320 ms for the 128 samples of a step
  const auto from = RateOf(rows);
  EXPECT_NEAR(from->low, RingRate(0.412), 2e-3 * RingRate(0.412));
  EXPECT_NEAR(*from->high, RingRate(0.22), 2e-3 * RingRate(0.22));
  EXPECT_EQ(Sentence(rows), "from 5.7 Gbit/s per link (derived; between 2.9 and 5.7 it is undecided)");
  EXPECT_EQ(ChineseSentence(rows), "每条链路达到 5.7 Gbit/s 起（推导；在 2.9 与 5.7 之间无法确定）");
  rows[0].samples_per_s_95 = Interval{318, 322};
  EXPECT_EQ(Sentence(rows), "from 4.2 Gbit/s per link (derived)") << "narrow";
}

TEST(UsefulRate, TheRangeBeginsAboveTheRateThatWasMeasured) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.link.bits_per_s = 3.5e9;
  rows[0].samples_per_s_95 = Interval{250, 400};
  const Wires wires{.latency_s = 1e-4, .bytes_per_s = 3.5e9 / 8, .add_s_per_byte = 1e-10};
  EXPECT_THAT(WorthDistributing(rows, rows[2], rows[0], wires).text, Has("between 3.5 and 5.7"));
  for (SummaryRow& row : rows) row.link.bits_per_s = 4.5e9;
  const Wires faster{.latency_s = 1e-4, .bytes_per_s = 4.5e9 / 8, .add_s_per_byte = 1e-10};
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], faster).text, "");
}

TEST(UsefulRate, MayNotExistIfOneProcessIsAsFastAsTheUpperEnd) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[0].samples_per_s_95 = Interval{250, 1300};  // 98 ms, less than a step without communication
  EXPECT_FALSE(RateOf(rows)->high.has_value());
  EXPECT_EQ(Sentence(rows), "undecided from 2.9 Gbit/s per link (derived)");
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], kGigabitWires).rate, "");
}

TEST(UsefulRate, NoneSufficesIfLatencyOrComputingIsTooLong) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  Wires far = kGigabitWires;
  far.latency_s = 0.1;  // six times is more than 300 ms
  EXPECT_FALSE(RateOf(rows, far).has_value());
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], far).text, "");
  rows[1] = TimedRow("none", 4, 420);
  EXPECT_FALSE(RateOf(rows).has_value());
  EXPECT_THAT(Sentence(rows), Has("even without communication (none), 4 workers are not faster"));
  rows[1].configuration.oversubscribed = true;  // with a core each they are faster
  EXPECT_THAT(Sentence(rows), Has("from 4.2 Gbit/s per link, with one core per worker"));
}

// One worker with two steps of 100 ms, 30 ms of communication and 10 ms of waiting.
RunRecords Records() {
  RunRecords records;
  records.ranks.push_back({.wall_s = 0.2, .update_ms = 5, .probe_ms = 1});
  records.steps.emplace_back();
  for (int64_t step = 0; step < 2; ++step) {
    const int64_t begin = 1'000'000'000 + step * 100'000'000;
    StepRecord record{.step = step,
                      .samples = 8,
                      .begin_ns = begin,
                      .step_ms = 100,
                      .compute_ms = 60,
                      .comm_busy_ms = 30,
                      .exposed_comm_ms = 10,
                      .payload_tx_bytes = 1000,
                      .bubble_ms = 20,
                      .activation_message_ms = 4,
                      .gradient_message_ms = 2};
    record.buckets.push_back(
        {.ready_ns = begin + 60'000'000, .begin_ns = begin + 60'000'000, .end_ns = begin + 90'000'000});
    records.steps.back().push_back(record);
  }
  records.network = NetworkFigures{.retransmitted_segments = 3, .again_ms = 20};
  return records;
}

TEST(TimeScale, DividesEveryTimeAndNothingElse) {
  const Configuration ring = TestConfiguration("ring", 1);
  RunRecords slowed = Records();
  const auto as_run = FiguresOf(ring, slowed);
  DivideTimes(10, slowed);
  const auto divided = FiguresOf(ring, slowed);
  ASSERT_TRUE(as_run.ok() && divided.ok()) << as_run.status() << divided.status();
  for (auto time : {&RunFigures::step_ms, &RunFigures::compute_ms, &RunFigures::comm_busy_ms,
                    &RunFigures::exposed_comm_ms, &RunFigures::wall_s, &RunFigures::waited_ms}) {
    EXPECT_NEAR((*divided).*time, (*as_run).*time / 10, 1e-9);
  }
  for (auto time : {&WorkerFigures::activation_message_ms, &WorkerFigures::gradient_message_ms}) {
    EXPECT_GT(as_run->workers[0].*time, 0);
    EXPECT_NEAR(divided->workers[0].*time, as_run->workers[0].*time / 10, 1e-9);
  }
  for (auto time : {&RunFigures::update_ms, &RunFigures::probe_ms})
    EXPECT_NEAR(*((*divided).*time), *((*as_run).*time) / 10, 1e-9);
  EXPECT_NEAR(divided->samples_per_s, 10 * as_run->samples_per_s, 1e-6);
  EXPECT_EQ(divided->payload_tx_bytes, as_run->payload_tx_bytes);
  EXPECT_EQ(divided->samples, as_run->samples);
  EXPECT_EQ(slowed.network->again_ms, 2);
  EXPECT_EQ(slowed.network->retransmitted_segments, 3);
  EXPECT_LT(slowed.ranks[0].computed_ms, 0) << "still unknown";
}

TEST(TimeScale, WiresStandForTheFasterOnes) {
  const Wires wires = DivideTimes(10, Wires{.latency_s = 1e-3,
                                            .bytes_per_s = 1e8,
                                            .add_s_per_byte = 1e-9,
                                            .grpc_bytes_per_s = 1e8,
                                            .stream_bytes_per_s = 2e8});
  EXPECT_DOUBLE_EQ(wires.grpc_bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(wires.stream_bytes_per_s, 2e9);
  EXPECT_DOUBLE_EQ(wires.latency_s, 1e-4);
  EXPECT_DOUBLE_EQ(wires.bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(wires.add_s_per_byte, 1e-10);
}

TEST(TimeScale, ComputingIsSlowedInEveryConfiguration) {
  TrainingOptions training;
  training.compute_speedup = 2;
  training.time_scale = 10;
  const auto slowed = MakeConfiguration("ring", 4, training, TestProbe(), 64);
  ASSERT_TRUE(slowed.ok());
  EXPECT_DOUBLE_EQ(slowed->training.compute_speedup, 0.2);
  EXPECT_TRUE(slowed->scaled());
}

}  // namespace
}  // namespace psring
