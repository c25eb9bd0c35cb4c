// Sentences about theory, bytes and accuracy describe the rows: their servers, schedule, optimizer and rate.
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "experiments/analysis/findings.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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
  EXPECT_THAT(ServerLaw(rows),
              ElementsAre(Has("ps-sync (one dedicated server; push and pull at the same time) exchanges "
                              "2.67 times as long as ring with 4 workers. With this run's buckets: 3.00 "
                              "times; measured: the exchange 3.10 times (less waiting for others), the step "
                              "2.14 times.")));
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

}  // namespace
}  // namespace psring
