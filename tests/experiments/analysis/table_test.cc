// Files, table and findings of hand-written rows.
#include "experiments/analysis/table.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/run_folder/run_files.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

SummaryRow Row(const std::string& strategy, int workers, const std::vector<double>& rates, int cores = 2) {
  SummaryRow row{.run_id = "run", .configuration = TestConfiguration(strategy, workers, cores)};
  row.measured_cost = true;
  row.rounds = static_cast<int>(rates.size());
  row.round_samples_per_s = rates;
  row.mean.samples_per_s = GeometricMean(rates);
  row.samples_per_s_95 = GeometricMeanInterval(rates);
  row.mean.step_ms = 13.5;
  row.mean.compute_ms = 11.25;
  row.mean.exposed_comm_ms = 2.25;
  row.mean.comm_busy_ms = 6;
  row.mean.payload_tx_bytes = 7454760;
  if (row.configuration.strategy.communicates()) row.predicted_payload_bytes = 7454760;
  return row;
}

std::string AllFindings(const std::vector<SummaryRow>& rows) {
  std::string text;
  for (const std::string& sentence : Findings(rows, Wires{.latency_s = 2e-5, .medium_bytes_per_s = 5e9}, 2))
    text += sentence + "\n";
  return text;
}

TEST(Table, TheEndsOfAnIntervalDifferOrAreOneNumber) {
  const auto interval = [](double low, double high) {
    SummaryRow row = Row("ring", 2, {100, 101});
    row.samples_per_s_95 = Interval{low, high};
    return ShortTable({row});
  };
  EXPECT_THAT(interval(18.4, 20.6), Has(" 18-21 "));
  EXPECT_THAT(interval(18.61, 19.32), Has(" 18.61-19.32 "));
  EXPECT_THAT(interval(19.001, 19.002), Has(" 19.00 "));
  EXPECT_THAT(interval(1234.1, 1234.2), Has(" 1,234 "));
}

TEST(Table, HasALineForEachClassOfUnequalWorkers) {
  const std::vector<SummaryRow> uneven = {Row("ring", 4, {100, 101}, /*cores=*/8),
                                          UnevenRow({840, 60, 50, 50})};
  const TableParts parts = PartsOfTable(uneven);
  EXPECT_EQ(parts.rows, (std::vector<size_t>{0, 1, 1, 1}));
  EXPECT_EQ(parts.columns[0].cells,
            (std::vector<std::string>{"ring", "ps-async", "- worker 0: 84%", "- others: 16%"}));
  EXPECT_EQ(parts.columns[1].cells, (std::vector<std::string>{"4", "4", "1", "3"}));
  EXPECT_EQ(parts.columns[2].cells[2], "840");
  EXPECT_EQ(parts.columns[2].cells[3], "160");
  for (const std::string& table : {Table(uneven), ShortTable(uneven)})
    EXPECT_THAT(table, Has("\n- worker 0: 84%", "unequal shares"));
  EXPECT_EQ(PartsOfTable({UnevenRow({30, 20, 20, 20})}).rows.size(), 1);
  const auto json = nlohmann::json::parse(TableJson(uneven, std::nullopt, 4));
  EXPECT_EQ(json["en"]["rows"].size(), 4);
  EXPECT_EQ(json["zh"]["rows"][3][0], "- 其余：16%");
}

TEST(Findings, NameWorkersThatMakeMostOfTheSamples) {
  std::vector<SummaryRow> rows = {TimedRow("none", 4, 100), UnevenRow({840, 60, 50, 50})};
  rows.back().cost_against_none_ms = 7;
  rows.back().test_accuracy = 0.8;
  const std::string findings = absl::StrJoin(Findings(rows, std::nullopt, 4), "\n");
  const std::string name = "ps-async (worker 0 makes 84% of the samples)";
  EXPECT_THAT(findings, Has(absl::StrCat("With 4 workers, ", name, " adds 7.0 ms to the 100.0 ms"),
                            absl::StrCat(name, " x 4 0.8000"),
                            "the sum of the other workers' rates divided by the worker's own"));
}

TEST(Findings, SayWhatZero1Is) {
  const auto findings = [](const char* strategy) {
    return absl::StrJoin(Findings({TimedRow(strategy, 4, 100)}, std::nullopt, 4), "\n");
  };
  EXPECT_THAT(findings("zero1"), Has("zero1 is a parameter server without a server process"));
  EXPECT_THAT(findings("ring"), Lacks("server process"));
}

TEST(Table, MarksRowsWhoseWorkersPushOneSum) {
  SummaryRow separate = Row("ring", 4, {100, 101}), together = Row("ps-sync", 4, {100, 101});
  EXPECT_THAT(Table({separate}), Lacks("/push"));
  together.configuration.training.local_aggregation = true;
  together.configuration.per_machine = 2;
  const TableParts parts = PartsOfTable({separate, together});
  const TableColumn& last = parts.columns.back();
  EXPECT_EQ(last.first + last.second, "workers/push");
  EXPECT_EQ(last.cells, (std::vector<std::string>{"", "2"}));
  EXPECT_THAT(Table({separate, together}), Has("--local_aggregation"));
}

TEST(Table, ShowsTimesInMilliseconds) {
  SummaryRow fast = Row("ring", 2, {100, 101}), slow = Row("ring", 4, {100, 101});
  slow.mean.step_ms = 133.8;
  std::map<std::string, std::vector<std::string>> cells;  // by heading
  for (const TableColumn& column : PartsOfTable({fast, slow}).columns)
    cells[column.first + column.second] = column.cells;
  EXPECT_EQ(cells["stepms"], (std::vector<std::string>{"13.5", "134"}));
  EXPECT_EQ(cells["com-pute"], (std::vector<std::string>{"11.2", "11.2"}));
  EXPECT_EQ(cells["ex-posed"], (std::vector<std::string>{"2.2", "2.2"}));
}

TEST(Table, FitsInto120Columns) {
  std::vector<SummaryRow> rows;
  for (int workers : {1, 2, 64}) {
    for (const char* strategy : {"none", "ring", "ps-async"}) {
      SummaryRow row = Row(strategy, workers, {114551, 109512, 114900, 115000, 114000});
      row.speedup = 1.53;
      row.cost_against_none_ms = 103.1;
      row.mean.wait_ms = 102.5;
      row.predicted_comm_ms = 104.4;
      row.mean.staleness_mean = 62.99;
      row.test_accuracy = 0.8611;
      rows.push_back(row);
    }
  }
  std::istringstream lines(Table(rows));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120) << line;
}

TEST(Table, TheShortTableFitsInto80ColumnsAndSaysWhatIsDerived) {
  std::vector<SummaryRow> rows;
  for (const char* strategy : {"none", "ring", "ps-async"}) {
    SummaryRow row = Row(strategy, 4, {14551, 14512, 14900});
    row.efficiency = 0.53;
    row.test_accuracy = 0.8611;
    rows.push_back(row);
  }
  rows.back().mean.comm_busy_ms = 1;  // less than what is exposed
  const std::string table = ShortTable(rows);
  std::istringstream lines(table.substr(table.find("\n\n") + 2));  // below AboveTable
  for (std::string line; std::getline(lines, line) && !line.empty();) EXPECT_LE(line.size(), 80) << line;
  EXPECT_THAT(table, Has("measured derived"));
  EXPECT_THAT(table, Has("53%      2.2     3.8"));  // 6 busy, of it 2.2 exposed
  EXPECT_THAT(table, Has("53%      2.2     0.0"));
  rows.front().configuration.training.clock = "virtual";
  EXPECT_THAT(ShortTable(rows), Has("simulated"));
  EXPECT_THAT(table, Lacks("simulated derived"));
}

TEST(Table, DefinesMeasuredDerivedAndSimulated) {
  const auto legend = [](const SummaryRow& row) { return PartsOfTable({row}).legend[1]; };
  SummaryRow row = Row("ring", 2, {1, 2});
  const std::string nothing =
      "Measured: by a clock or a counter. Derived: computed from measured values. In this table nothing is "
      "simulated.";
  EXPECT_EQ(legend(row), nothing);
  EXPECT_THAT(ShortTable({row}), Has("Measured: by a clock or a counter."));
  EXPECT_EQ(InLanguage(Language::kChinese, [&] { return legend(row); }),
            "测量：来自时钟或计数器。推导：由测量值算出。此表没有模拟值。");
  row.prediction.emplace();
  EXPECT_THAT(legend(row), testing::EndsWith("Simulated: by psring's simulator (--predict)."));
  EXPECT_THAT(ShortTable({row}), Has("Nothing in this"));
  row.prediction.reset();
  row.configuration.training.clock = "virtual";
  EXPECT_EQ(legend(row),
            "Measured: by a clock or a counter. Simulated: times of the virtual clock. Derived: computed "
            "from measured and simulated values.");
  row = Row("ring", 2, {1, 2});
  row.configuration.training.time_scale = 10;
  EXPECT_THAT(legend(row), Has("then divided by 10 (--scale)"));
}

TEST(Table, NamesTheModelAboveTheTable) {
  SummaryRow row = Row("ring", 2, {1, 2});
  row.configuration.model.name = "resnet50 (replayed)";
  row.sample.parameters = 25'557'032;
  row.configuration.training.batch = 32;
  EXPECT_EQ(AboveTable({row}),
            (std::vector<std::string>{
                "Model: resnet50 (replayed), 25,557,032 parameters (102 MB of float32 gradients).",
                "Weak scaling (--batch): every worker computes 32 samples per step."}));
  for (const std::string& table : {Table({row}), ShortTable({row})})
    EXPECT_THAT(table, testing::StartsWith("Model: resnet50 (replayed), 25,557,032 parameters"));
  row.configuration.training.global_batch = 64;
  EXPECT_THAT(AboveTable({row}).back(), Has("the workers share 64 samples per step"));
  EXPECT_TRUE(AboveTable({}).empty());
}

TEST(Table, CountsTheTokensOfTexts) {
  std::vector<SummaryRow> rows = {Row("single", 1, {10, 11}), Row("none", 2, {19, 20}),
                                  Row("ring", 2, {15, 16}), Row("ps-sync", 2, {12, 13})};
  for (SummaryRow& row : rows) {
    row.configuration.training.data = "text";
    row.configuration.training.batch = 12;
    row.test_accuracy = 0.5;
    row.trainings = 1;
    row.trained_samples = 4096;
  }
  for (const std::string& text : {Table(rows), ShortTable(rows), AllFindings(rows)})
    EXPECT_THAT(text, testing::AllOf(Has("tokens"), Lacks("samples")));
  EXPECT_EQ(AboveTable(rows).back(), "Weak scaling (--batch): every worker computes 12 texts per step.");
}

TEST(Table, ShowsWiresLast) {
  SummaryRow none = Row("none", 2, {1, 2}), ring = Row("ring", 2, {1, 2});
  EXPECT_THAT(Table({none, ring}), Lacks("wire"));
  ring.mean.wires = {"shared memory", "TCP"};
  const TableColumn english = PartsOfTable({none, ring}).columns.back();
  EXPECT_EQ(english.second, "wire");
  EXPECT_EQ(english.cells, (std::vector<std::string>{"", "shared memory, TCP"}));
  const auto parts = InLanguage(Language::kChinese, [&] { return PartsOfTable({none, ring}); });
  const TableColumn chinese = parts.columns.back();
  EXPECT_EQ(chinese.cells, (std::vector<std::string>{"", "共享内存，TCP"}));
}

TEST(Table, TheShortTableShowsWiresOnlyIfTheyDiffer) {
  SummaryRow none = Row("none", 2, {1, 2}), ring = Row("ring", 2, {1, 2}), server = Row("ps-sync", 2, {1, 2});
  ring.mean.wires = server.mean.wires = {"shared memory"};
  EXPECT_THAT(ShortTable({none, ring, server}), Lacks("wire"));
  ring.mean.wires = {"TCP"};
  server.mean.wires = {"gRPC over TCP"};
  EXPECT_THAT(ShortTable({none, ring, server}), Lacks("wire"));
  ring.mean.wires = {"shared memory"};
  EXPECT_THAT(ShortTable({none, ring, server}), Has("wire\n", " shared memory\n", " gRPC over TCP\n"));
}

TEST(Table, AServersOwnConnectionsAreNamed) {
  const SummaryRow grpc = Row("ps-sync", 2, {1, 2});
  SummaryRow stream = grpc;
  stream.configuration.training.server_wire = "stream";
  stream.mean.wires = {"TCP"};
  EXPECT_THAT(ShortTable({grpc, stream}), Has("ps-sync ", "ps-sync (stream) "));
  stream.configuration.training.servers = 2;
  EXPECT_EQ(NameWithServers(stream), "ps-sync on 2 servers (stream)");
}

TEST(Table, MarksWhatIsMeasuredAndDerivedAndOversubscribed) {
  const std::string table = Table({Row("ring", 2, {1, 2}), Row("ring", 4, {1, 2})});
  EXPECT_THAT(table, Has("m measured, d derived", "4*", "* oversubscribed"));
  EXPECT_THAT(Table({Row("ring", 2, {1, 2})}), Lacks("oversubscribed"));
}

TEST(Table, MarksInvalidRows) {
  SummaryRow row = Row("ring", 4, {1, 2});
  row.valid = false;
  EXPECT_THAT(Table({row}), Has("4*!", "! not valid"));
}

TEST(Findings, NameTransportsAndTheirDifferences) {
  SummaryRow ring = Row("ring", 2, {1, 2}), server = Row("ps-sync", 2, {1, 2});
  ring.sample.backend = server.sample.backend = "native";
  ring.sample.transport = "tcp";
  server.sample.transport = "grpc";
  EXPECT_THAT(AllFindings({ring, server}), Has("All payload went over TCP."));
  ring.sample.transport = "shm";
  const std::string text = AllFindings({ring, server});
  EXPECT_THAT(text, Has("The transports differ: ps-sync over TCP; ring over shared memory."));
}

TEST(Findings, OneStrategyOverTwoWiresIsNamedWithItsWorkers) {
  SummaryRow near = Row("ring", 2, {1, 2}), far = Row("ring", 4, {1, 2}), star = Row("star", 4, {1, 2});
  near.sample.transport = "shm";
  far.sample.transport = "shm+tcp";
  star.sample.transport = "tcp";
  near.mean.wires = {"shared memory"};
  far.mean.wires = {"shared memory", "TCP"};
  star.mean.wires = {"Gloo over TCP"};
  const std::string text = AllFindings({near, far, star});
  EXPECT_THAT(text, Has("The transports differ: star over TCP; ring x 2 over shared memory; ring x 4 over "
                        "shared memory and TCP."));
}

TEST(Findings, AServerThatSharesMemoryWithTheWorkerOnItsMachineDoesNotDifferInItsWire) {
  SummaryRow ring = Row("ring", 2, {1, 2}), server = Row("ps-sync", 2, {1, 2}),
             one = Row("ps-sync", 1, {1, 2});
  ring.mean.wires = {"TCP"};
  server.mean.wires = {"shared memory", "gRPC over TCP"};
  one.mean.wires = {"shared memory"};
  one.sample.transport = server.sample.transport = "shm";
  EXPECT_THAT(AllFindings({one, ring, server}), Has("The transports differ"));
  for (SummaryRow* row : {&ring, &server, &one}) row->configuration.per_machine = 1;
  EXPECT_THAT(AllFindings({one, ring, server}), Has("Between machines, all payload went over TCP."));
  EXPECT_THAT(ShortTable({one, ring, server}), Lacks("wire"));
  EXPECT_THAT(AllFindings({one}), Has("All payload went over shared memory."));
  ring.mean.wires = {"NCCL over InfiniBand"};
  EXPECT_THAT(AllFindings({ring, server}), Has("ring over NCCL over InfiniBand; ps-sync over TCP"));
}

TEST(Findings, AnotherLibraryOverTcpIsNoOtherWire) {
  SummaryRow ring = Row("ring", 2, {1, 2}), star = Row("star", 2, {1, 2}), server = Row("ps-sync", 2, {1, 2});
  ring.mean.wires = {"TCP"};
  star.mean.wires = {"NCCL over sockets"};
  server.mean.wires = {"gRPC over TCP"};
  EXPECT_THAT(AllFindings({ring, star, server}), Has("All payload went over TCP."));
  star.mean.wires = {"NCCL"};
  EXPECT_THAT(AllFindings({ring, star, server}), Has("star over NCCL"));
}

TEST(Findings, DerivedBytesAreNotComparedWithTheory) {
  SummaryRow ring = Row("ring", 2, {1, 2});
  ring.sample.backend = "gloo";
  const std::string text = AllFindings({ring});
  EXPECT_THAT(text, testing::AllOf(Lacks("match theory"), Has("The bytes of ring are derived")));
}

TEST(Table, GroupsNumbersByThousands) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999.4), "999");
  EXPECT_EQ(WithThousands(14551.2), "14,551");
  EXPECT_EQ(WithThousands(-1234567), "-1,234,567");
}

const std::vector<double> kFast = {120, 121, 119, 120, 122}, kSlow = {100, 101, 99, 100, 100};

TEST(Findings, NameAWinnerOnlyIfTheIntervalExcludes1) {
  using Rates = std::vector<double>;
  for (const auto& [ring, server, says] :
       {std::tuple(kFast, kSlow, "ring versus ps-sync with 2 workers: 1.20 times"),
        std::tuple(Rates{120, 80, 100, 101, 99}, kSlow, "no difference shown"),
        std::tuple(Rates{120, 126, 110}, Rates{100, 101, 99},
                   "the difference is too small or too uncertain to name a winner"),
        std::tuple(Rates{120}, Rates{100}, "(ratio 1.20, one round, so no interval)"),
        std::tuple(Rates{120, 126}, Rates{100, 101}, ", 2 rounds)")}) {
    EXPECT_THAT(AllFindings({Row("ring", 2, ring), Row("ps-sync", 2, server)}), Has(says));
  }
}

TEST(Findings, OfOneKindBeginWithTheLargestEffect) {
  std::vector<SummaryRow> rows = {Row("none", 2, kFast), Row("ring", 2, kFast), Row("star", 2, kSlow),
                                  Row("ps-sync", 2, {50, 51, 49, 50, 50})};
  rows[1].cost_against_none_ms = 1;
  rows[2].cost_against_none_ms = 2;
  rows[3].cost_against_none_ms = 9;
  const std::string text = AllFindings(rows);
  const auto at = [&](const char* part) { return text.find(part); };
  EXPECT_LT(at("ps-sync adds 9.0 ms"), at("star adds 2.0 ms"));
  EXPECT_LT(at("star adds 2.0 ms"), at("ring adds 1.0 ms"));
  EXPECT_LT(at("ring versus ps-sync"), at("star versus ps-sync"));
  EXPECT_NE(at("star versus ps-sync"), std::string::npos);
}

TEST(Findings, EachFurtherComparisonDemandsClearerEvidence) {
  const std::vector<double> faster = {120, 121, 119, 124, 116}, slower = {111, 105, 110, 104, 106};
  EXPECT_THAT(AllFindings({Row("ring", 2, faster), Row("ps-sync", 2, slower)}), Lacks("too uncertain"));
  const std::vector<double> same = {100, 101, 99, 98, 102};
  std::vector<SummaryRow> rows = {Row("ring", 2, faster), Row("ps-sync", 2, slower)};
  for (const int workers : {3, 5, 6}) {
    rows.push_back(Row("ring", workers, same, /*cores=*/8));
    rows.push_back(Row("ps-sync", workers, same, /*cores=*/8));
  }
  EXPECT_THAT(AllFindings(rows), Has("too uncertain"));
}

TEST(Findings, InvalidRowsHaveNoCosts) {
  SummaryRow none = Row("none", 2, kFast), ring = Row("ring", 2, kFast), server = Row("ps-sync", 2, kSlow);
  ring.cost_against_none_ms = -89.9;
  server.cost_against_none_ms = 3.5;
  const std::string valid = AllFindings({none, ring, server});
  EXPECT_THAT(valid, Has("-89.9 ms", "ring versus"));

  for (SummaryRow* const row : {&none, &ring, &server}) row->foreign_cpu_pct = 50;
  ring.valid = false;
  const std::string text = AllFindings({none, ring, server});
  EXPECT_THAT(text, Lacks("-89.9 ms"));
  EXPECT_THAT(text, Has("ring versus")) << "paired by round";
  EXPECT_THAT(text, Has("adds 3.5 ms")) << "of a valid row";
  EXPECT_THAT(text, Has("The bytes sent match theory", "Other programs used"));

  none.valid = false;
  EXPECT_THAT(AllFindings({none, ring, server}), Lacks("adds 3.5 ms")) << "the reference is not valid";
  server.valid = false;
  EXPECT_THAT(AllFindings({none, ring, server}), Has("every row"));
}

TEST(Findings, NameNoWinnerForANetwork) {
  EXPECT_THAT(AllFindings({Row("ring", 2, kFast), Row("ps-sync", 2, kSlow)}),
              Has("processor time that they need on one machine, not networks", "5.0 GB/s in total, 20 us"));
}

TEST(Findings, AreTheSameInChinese) {
  SummaryRow none = Row("none", 2, kFast), ring = Row("ring", 2, kFast), server = Row("ps-sync", 2, kSlow),
             late = Row("ps-async", 4, {1, 2});
  ring.cost_against_none_ms = 3.5;
  ring.cost_against_none_95 = {3, 4};
  late.mean.staleness_mean = 2.9;
  late.test_accuracy = 0.861;
  const std::vector<SummaryRow> rows = {none, ring, server, late};
  const Wires wires{.latency_s = 2e-5, .medium_bytes_per_s = 5e9};
  const auto english = Findings(rows, wires, 2),
             chinese = InLanguage(Language::kChinese, [&] { return Findings(rows, wires, 2); });
  ASSERT_EQ(english.size(), chinese.size());
  for (size_t i = 0; i < english.size(); ++i) {
    EXPECT_NE(chinese[i], english[i]);
    EXPECT_THAT(chinese[i], testing::EndsWith("。"));
    EXPECT_THAT(chinese[i], Lacks("$"));
    EXPECT_THAT(english[i], Lacks("$"));
  }
}

TEST(Table, AlignsColumnsUnderChineseHeadings) {
  const std::string table = InLanguage(Language::kChinese, [&] {
    return Table({Row("ring", 2, {114551, 1}), Row("ps-sync", 2, {2, 1})});
  });
  std::istringstream lines(table.substr(table.find("\n\n") + 2));  // below AboveTable
  std::string first, second, marks, row;
  for (std::string* line : {&first, &second, &marks, &row}) std::getline(lines, *line);
  EXPECT_THAT(second, Has("策略"));
  // The last column ends where its heading does.
  EXPECT_EQ(TextColumns(second), TextColumns(row)) << second << "\n" << row;
  EXPECT_EQ(TextColumns(marks), TextColumns(row));
}

TEST(Findings, OversubscribedRowsAreNotCompared) {
  const std::string text = AllFindings({Row("ring", 4, kFast), Row("ps-sync", 4, kSlow)});
  EXPECT_THAT(text, testing::AllOf(Lacks("ring versus"), Has("4 workers share 2 cores")));
}

TEST(Findings, OversubscribedRowsAreComparedIfTheNetworkLimitsTheSlowerOne) {
  SummaryRow none = Row("none", 4, {800, 801, 799, 800, 800}), ring = Row("ring", 4, kFast),
             server = Row("ps-sync", 4, kSlow);
  none.mean.step_ms = 40;
  ring.mean.step_ms = 70;
  server.mean.step_ms = 100;
  for (SummaryRow* row : {&none, &ring, &server}) row->link.bits_per_s = 1e9;
  EXPECT_THAT(AllFindings({none, ring, server}), Has("ring versus ps-sync with 4 workers: 1.20 times"));
  none.mean.step_ms = 60;
  EXPECT_THAT(AllFindings({none, ring, server}), Lacks("ring versus"));
}

TEST(Findings, ReportBytesThatDifferFromTheory) {
  SummaryRow row = Row("ring", 2, {1, 2});
  EXPECT_THAT(AllFindings({row}), Has("The bytes sent match theory"));
  row.mean.payload_tx_bytes *= 1.01;
  EXPECT_THAT(AllFindings({row}), Has("ring x 2 sent 7.529 MB, theory predicts 7.455"));
}

TEST(Wrap, BreaksAtSpacesAndIndents) {
  EXPECT_EQ(Wrap("one two three four", "- ", 11), "- one two\n  three\n  four\n");
  EXPECT_EQ(Wrap("an-endless-word x", "", 5), "an-endless-word\nx\n");
  EXPECT_EQ(Wrap("", "- "), "- \n");
}

TEST(Findings, DescribeTheWorkOfDevice0) {
  SummaryRow row = Row("data-parallel", 2, {1, 2});
  row.sample.parameters = 1'000'000;
  row.sample.data_parallel = {.replicas = 2,
                              .inputs_bytes = 1e6,
                              .weights_bytes = 4e6,
                              .weights_ms = 2,
                              .gradients_bytes = 4e6,
                              .gradients_ms = 1.5,
                              .update_ms = .5,
                              .device0_extra_mb = 7};
  const std::string text = AllFindings({row});
  EXPECT_THAT(text, Has("device 0 sends 5.00 MB per step (inputs 1.00, weights 4.00",
                        "In a ring each worker sends 4.00 MB", "are idle for 4.0 of 13.5 ms"));
  const auto json = nlohmann::json::parse(SummaryJson({row}));
  EXPECT_EQ(json[0]["data_parallel"]["weights_bytes"], 4e6);
  EXPECT_EQ(json[0]["data_parallel"]["device0_alone_ms"], 4);
  EXPECT_EQ(json[0]["figures"]["payload_tx_bytes_per_worker"], 7454760);
}

}  // namespace
}  // namespace psring
