// What workers say -> figures, limits, tables, files.
#include "experiments/verbs/bench/result.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/text/translate.h"
#include "experiments/verbs/bench/runner.h"
#include "experiments/verbs/bench/text.h"
#include "tests/has.h"

namespace psring {
namespace {

BenchPlan TwoCombinations() {
  BenchPlan plan;
  plan.combinations = {{"all_reduce", "native", "ring", "shm", "private", 4},
                       {"all_reduce", "gloo", "", "tcp", "private", 4}};
  plan.launches = {{.workers = 4, .combinations = {0, 1}, .limits = true}};
  plan.sizes = {1000000};
  plan.rounds = 2;
  plan.iterations = 2;
  return plan;
}

std::string RowLine(int combination, const std::string& times, int wrong = 0) {
  const std::string half =
      absl::StrCat(R"({"times_us":[)", times, R"(],"calls_per_turn":3,"wrong":)", wrong, "}");
  return absl::StrCat(R"({"event":"row","combination":)", combination,
                      R"(,"type":"float32","op":"sum","bytes":1000000,"count":250000,"out_of_place":)", half,
                      R"(,"in_place":)", half, "}");
}

std::string LimitLine(const std::string& kind, double time_us) {
  return absl::StrCat(R"({"event":"limit","kind":")", kind,
                      R"(","collective":"all_reduce","bytes":1000000,"times_us":[)", time_us, "]}");
}

class BenchResultTest : public testing::Test {
 protected:
  void Say(const std::string& line) { EXPECT_TRUE(result.Note(plan.launches[0], line)) << line; }
  void SayAll() {
    Say(R"({"event":"start","ranks":[{"host":"here","pid":7},{"host":"here","pid":8}],)"
        R"("groups":[{"backend":"native","algorithm":"ring","transport":"shm"},)"
        R"({"backend":"gloo","algorithm":"ring_chunked","transport":"tcp"}]})");
    for (const char* times : {"400,600", "500,900"}) {  // two rounds
      Say(RowLine(0, times));
      Say(RowLine(1, times));
    }
    Say(LimitLine("shared", 250));
    Say(LimitLine("tcp", 500));
    Say(LimitLine("copy", 100));
  }

  BenchRequest request;
  const BenchPlan plan = TwoCombinations();
  BenchResult result{plan};
};

TEST_F(BenchResultTest, TheTimeIsTheMedianOverAllRounds) {
  SayAll();
  ASSERT_TRUE(result.RequireComplete().ok()) << result.RequireComplete();
  const BenchTable& table = result.tables()[0];
  const CollectiveRow row = result.RowOf(table, table.cells[0], 0);
  EXPECT_DOUBLE_EQ(row.out_of_place.time_us, 550);
  EXPECT_NEAR(row.out_of_place.algbw, 1e6 / 550e3, 1e-9);
  EXPECT_NEAR(row.out_of_place.busbw, 1.5 * 1e6 / 550e3, 1e-9);
  EXPECT_DOUBLE_EQ(table.cells[0].out_of_place.Least(), 400);
  EXPECT_DOUBLE_EQ(table.cells[0].out_of_place.NearestRank(99), 900);
  EXPECT_DOUBLE_EQ(table.cells[0].out_of_place.NearestRank(50), 500);
}

TEST_F(BenchResultTest, TheLimitIsFusedAddingForSharedMemoryAndARingForTcp) {
  SayAll();
  const BenchTable& shm = result.tables()[0];
  const BenchTable& tcp = result.tables()[1];
  EXPECT_NEAR(result.RowOf(shm, shm.cells[0], 0).out_of_place.percent_of_limit, 100 * 250 / 550.0, 1e-9);
  EXPECT_NEAR(result.RowOf(tcp, tcp.cells[0], 0).out_of_place.percent_of_limit, 100 * 500 / 550.0, 1e-9);
}

TEST_F(BenchResultTest, TheLimitIsForTheTransportThatWasUsed) {
  Say(R"({"event":"start","groups":[{"backend":"native","algorithm":"ring","transport":"tcp"}]})");
  Say(RowLine(0, "500,500"));
  Say(LimitLine("tcp", 500));
  const BenchTable& table = result.tables()[0];
  EXPECT_NEAR(result.RowOf(table, table.cells[0], 0).out_of_place.percent_of_limit, 100, 1e-9);
  EXPECT_THAT(BenchTablesText(request, result), Has("--transport shm was requested, but tcp"));
}

TEST(MeasuredLimits, AServersRoundHasItsOwnLimits) {
  MeasuredLimits limits;
  limits.Add(1, "raw", kPushPull, 1000000, {500});
  limits.Add(1, "fused", kPushPull, 1000000, {100});
  const auto tcp = limits.BusBandwidth({kPushPull, "grpc", "sync", "tcp", "private", 1}, "tcp", 1000000);
  EXPECT_NEAR(tcp.value(), 2.0, 1e-9);
  const auto shm = limits.BusBandwidth({kPushPull, "grpc", "sync", "shm", "shared", 1}, "shm", 1000000);
  EXPECT_NEAR(shm.value(), 10.0, 1e-9);
  EXPECT_THAT(limits.Text(1), Has("500.0       100.0"));
}

TEST(MeasuredLimits, OneWorkerAndMixedTransportsHaveNoLimit) {
  MeasuredLimits limits;
  limits.Add(1, "tcp", "all_reduce", 1000, {5});
  limits.Add(2, "tcp", "all_reduce", 1000, {5});
  EXPECT_FALSE(limits.BusBandwidth({"all_reduce", "native", "ring", "tcp", "private", 1}, "tcp", 1000));
  EXPECT_FALSE(limits.BusBandwidth({"all_reduce", "native", "ring", "auto", "private", 2}, "shm+tcp", 1000));
  EXPECT_TRUE(limits.BusBandwidth({"all_reduce", "native", "ring", "tcp", "private", 2}, "tcp", 1000));
}

TEST_F(BenchResultTest, MissingSamplesAreNamed) {
  EXPECT_THAT(result.RequireComplete().message(), Has("native ring over shm"));
  SayAll();
  EXPECT_TRUE(result.RequireComplete().ok());
  BenchResult other{plan};
  EXPECT_TRUE(other.Note(plan.launches[0], RowLine(0, "1,2,3,4")));
  EXPECT_TRUE(other.Note(plan.launches[0], RowLine(1, "1,2,3")));
  EXPECT_THAT(other.RequireComplete().message(), Has("gloo over tcp", "3 of 4"));
}

TEST(BenchResult, AnAllToAllIsCompleteWithoutFiguresInPlace) {
  BenchPlan plan = TwoCombinations();
  plan.combinations = {{"all_to_all", "native", "pairwise", "shm", "private", 4}};
  plan.launches = {{.workers = 4, .combinations = {0}}};
  BenchResult result{plan};
  EXPECT_TRUE(result.Note(plan.launches[0],
                          R"({"event":"row","combination":0,"type":"float32","op":"sum","bytes":1000000,)"
                          R"("count":62500,"out_of_place":{"times_us":[400,500,600,900],)"
                          R"("calls_per_turn":1,"wrong":0}})"));
  ASSERT_EQ(result.RequireComplete(), absl::OkStatus());
  const CollectiveRow row = result.RowOf(result.tables()[0], result.tables()[0].cells[0], 0);
  EXPECT_EQ(row.op, "none");
  EXPECT_FALSE(row.in_place.measured);
  EXPECT_NEAR(row.out_of_place.busbw, 0.75 * 1e6 / 550e3, 1e-9);
}

TEST_F(BenchResultTest, OtherLinesAreIgnored) {
  EXPECT_FALSE(result.Note(plan.launches[0], "hello"));
  EXPECT_FALSE(result.Note(plan.launches[0], "{\"a\":1}"));
  EXPECT_FALSE(result.Note(plan.launches[0], "{broken"));
  EXPECT_TRUE(result.Note(plan.launches[0], RowLine(9, "1")));  // no such combination: not counted
  EXPECT_TRUE(result.tables()[0].cells.empty());
}

TEST_F(BenchResultTest, InvalidLinesCountAsMissing) {
  for (const char* line :
       {R"({"event":"start","ranks":5})", R"({"event":"start","groups":[{"algorithm":7}]})",
        R"({"event":"row","combination":-1})",
        R"({"event":"row","combination":0,"type":"float32","op":"sum","bytes":-4,"count":1})",
        R"({"event":"row","combination":0,"type":1,"op":[],"bytes":"8"})",
        R"({"event":"limit","kind":"tcp","bytes":8,"times_us":"x"})",
        R"({"event":"progress","done":"x","of":-1})"}) {
    EXPECT_TRUE(result.Note(plan.launches[0], line)) << line;
  }
  EXPECT_FALSE(result.Note(plan.launches[0], R"({"event":5})"));
  EXPECT_TRUE(result.tables()[0].cells.empty());
}

TEST_F(BenchResultTest, AllLinesExceptRowsAreComments) {
  SayAll();
  int rows = 0;
  for (absl::string_view line : absl::StrSplit(BenchTablesText(request, result), '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    ++rows;
    const std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    EXPECT_EQ(columns.size(), 15) << line;
    EXPECT_EQ(columns[0], "1000000");
  }
  EXPECT_EQ(rows, 2);
  const std::string text = BenchTablesText(request, result);
  EXPECT_THAT(text, Has("=== all_reduce, gloo ring_chunked over tcp, private buffers, 4 workers",
                        "# Out of bounds values : 0 OK", "# Summary: all_reduce, 4 workers"));
  EXPECT_THAT(BenchHeadText(request, plan, {}, 3), Lacks("\n "));
}

TEST_F(BenchResultTest, TheJsonIsNcclTestsWithMore) {
  SayAll();
  result.NoteForeignCpu(plan.launches[0], 10);
  result.NoteForeignCpu(plan.launches[0], 20);
  const auto json =
      nlohmann::json::parse(BenchJson(request, result, {.command_line = {"psring", "bench"}, .plan = {}}));
  EXPECT_EQ(json["version"], 3);
  EXPECT_EQ(json["config"]["iterations"], 4);
  EXPECT_EQ(json["config"]["devices"].size(), 2);
  EXPECT_EQ(json["out_of_bounds"]["okay"], "true");
  ASSERT_EQ(json["results"].size(), 2);
  const auto& row = json["results"][1];
  const auto values = nlohmann::json::parse(
      R"({"size": 1000000, "type": "float", "redop": "sum", "root": "    -1", "backend": "gloo", "min_us": 400,
          "algorithm": "ring_chunked", "transport": "tcp", "buffers": "private", "foreign_cpu_pct": 15})");
  for (const auto& [name, value] : values.items()) EXPECT_EQ(row[name], value) << name;
  EXPECT_EQ(row["out_of_place"]["nwrong"], 0);
  EXPECT_EQ(row["out_of_place"]["time"], 550);
  EXPECT_EQ(row["out_of_place_per_iter"]["p99_us"], 900);
  EXPECT_EQ(row["out_of_place_per_iter"]["times_us"].size(), 4);
  EXPECT_NEAR(row["percent_of_limit"].get<double>(), 90.9, 0.1);
}

// psring's default depends on the size; another library's is not known.
TEST_F(BenchResultTest, SaysWhichAlgorithmTheDefaultTook) {
  Say(R"({"event":"start","ranks":[{"host":"here","pid":7},{"host":"here","pid":8}],)"
      R"("groups":[{"backend":"native","algorithm":"default","transport":"shm"},)"
      R"({"backend":"gloo","algorithm":"default","transport":"tcp"}]})");
  for (const char* times : {"400,600", "500,900"}) {
    Say(RowLine(0, times));
    Say(RowLine(1, times));
  }
  const std::string text = BenchTablesText(request, result);
  EXPECT_THAT(text, Has("# default chose direct from 1000000"));
  EXPECT_EQ(text.find("# default chose"), text.rfind("# default chose"));
  const auto rows =
      nlohmann::json::parse(BenchJson(request, result, {.command_line = {}, .plan = {}}))["results"];
  EXPECT_EQ(rows[0]["algorithm"], "default");
  EXPECT_EQ(rows[0]["chosen_algorithm"], "direct");
  EXPECT_EQ(rows[1]["chosen_algorithm"], "default");
  EXPECT_THAT(BenchCsv(request, result, {.run_id = "r", .plan = {}}),
              Has(",chosen_algorithm\n", ",direct\n"));
}

TEST_F(BenchResultTest, UncheckedIsNull) {
  Say(RowLine(0, "1,2", -1));
  const auto json = nlohmann::json::parse(BenchJson(request, result, {.plan = {}}));
  EXPECT_TRUE(json["results"][0]["out_of_place"]["nwrong"].is_null());
  EXPECT_TRUE(json["results"][0]["percent_of_limit"].is_null());
}

TEST_F(BenchResultTest, CsvRowsHaveAsManyFieldsAsTheHeader) {
  SayAll();
  const std::vector<std::string> lines =
      absl::StrSplit(BenchCsv(request, result, {.run_id = "r", .plan = {}}), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3);
  const auto fields = [](const std::string& line) { return std::count(line.begin(), line.end(), ','); };
  EXPECT_EQ(fields(lines[0]), fields(lines[1]));
  EXPECT_EQ(fields(lines[0]), fields(lines[2]));
}

TEST(OneLine, NamesTheProcessAndTheCause) {
  EXPECT_EQ(OneLineOf("2 workers: rank 1 ended with exit code 1; its last lines:\n  | {\"x\":1}\n"
                      "  | ring_worker: all_reduce, 4 bytes: rank 1 has 3 wrong elements"),
            "2 workers: all_reduce, 4 bytes: rank 1 has 3 wrong elements");
  EXPECT_EQ(OneLineOf("2 workers: rank 1 was killed by SIGKILL (Killed); its last lines:\n  | x"),
            "2 workers: rank 1 was killed by SIGKILL (Killed)");
  EXPECT_EQ(
      OneLineOf("2 workers (mpirun, shm): mpirun ended with exit code 137; its last lines:\n  | ------\n"
                "  | mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."),
      "2 workers (mpirun, shm): mpirun noticed that process rank 1 with PID 0 on node vm exited on signal "
      "9 (Killed).");
  EXPECT_EQ(OneLineOf("2 workers: mpirun ended with exit code 1; its last lines:\n"
                      "  | rank 0: all_reduce, mpi: broken; the job ends\n  | -----"),
            "2 workers: rank 0: all_reduce, mpi: broken");
  EXPECT_EQ(OneLineOf("2 workers: not done after 5s; still waiting for rank 1"),
            "2 workers: not done after 5s; still waiting for rank 1");
}

NetworkReport SlowSecond() {
  // Node 1 sends and receives 0.5 Gbit/s, the others 1.
  NetworkReport network{.nodes = 3};
  const double fast = 125e6, slow = 62.5e6;
  network.bytes_per_s = {0, slow, fast, slow, 0, slow, fast, slow, 0};
  network.latency_s = {0, 2e-5, 3e-5, 2e-5, 0, 4e-5, 3e-5, 4e-5, 0};
  network.into = {fast, slow, fast};
  network.ring = {slow, slow, fast};
  return network;
}
const std::vector<std::string> kThree = {"a at 10.0.0.1", "b at 10.0.0.2", "c at 10.0.0.3"};

TEST(NetworkText, IsAMatrixWithASentence) {
  EXPECT_EQ(NetworkText(SlowSecond(), kThree),
            "# Network between 3 machines (measured): Gbit/s from the node of a row to that of a column, one "
            "pair at a time\n"
            "# into: into the node from all others at once; ring: to the next node, while all nodes send\n"
            "#   node         0         1         2      into      ring\n"
            "#      0         -       0.5         1         1       0.5\n"
            "#      1       0.5         -       0.5       0.5       0.5\n"
            "#      2         1       0.5         -         1         1\n"
            "# Latency in us (half a round trip of 4 bytes, measured)\n"
            "#   node         0         1         2\n"
            "#      0         -        20        30\n"
            "#      1        20         -        40\n"
            "#      2        30        40         -\n"
            "#   node 0: a at 10.0.0.1\n"
            "#   node 1: b at 10.0.0.2\n"
            "#   node 2: c at 10.0.0.3\n"
            "# the slowest node is node 1 (b at 10.0.0.2): it sends and receives at most 0.5 Gbit/s, while "
            "the others reach 1 (median)\n");
  EXPECT_THAT(InLanguage(Language::kChinese, [&] { return NetworkText(SlowSecond(), kThree); }),
              Has("最慢的节点是 node 1"));
}

TEST(NetworkText, OfManyNodesNamesTheFileInstead) {
  const int nodes = kMaxNodesOfMatrix + 1;
  const auto size = static_cast<size_t>(nodes);
  NetworkReport network{.nodes = nodes};
  network.bytes_per_s.assign(size * size, 125e6);
  network.latency_s.assign(size * size, 1e-5);
  network.ring.assign(size, 125e6);
  const std::string text = NetworkText(network, std::vector<std::string>(size, "a"));
  EXPECT_THAT(text, Has("all pairs of 17 nodes are in network.csv", "# no node or link is much slower"));
}

TEST(NetworkCsv, HasARowForEachDirection) {
  const std::string csv = NetworkCsv("run", SlowSecond(), kThree);
  EXPECT_THAT(csv, Has("\n1,run,1,2,b at 10.0.0.2,c at 10.0.0.3,40,0.5,measured\n"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
}

// All-reduces of 1 MB: ring in 1 ms, direct in 4 ms, so with 4 workers 1.5 and 0.375 GB/s.
class RequirementTest : public testing::Test {
 protected:
  RequirementTest() {
    plan_.combinations = {{"all_reduce", "native", "ring", "tcp", "private", 4},
                          {"all_reduce", "native", "direct", "tcp", "private", 4}};
    plan_.launches = {{.workers = 4, .combinations = {0, 1}}};
    plan_.sizes = {1000, 1000000};
  }
  absl::Status Check(double busbw, const std::string& slowest = "") const {
    BenchResult result(plan_);
    for (const int i : {0, 1}) {
      for (const auto& [bytes, us] : {std::pair{1000, 1}, {1000000, i == 0 ? 1000 : 4000}})
        EXPECT_TRUE(result.Note(
            plan_.launches[0],
            absl::StrCat(R"({"event":"row","combination":)", i, R"(,"type":"float32","op":"sum","bytes":)",
                         bytes, R"(,"count":1,"out_of_place":{"times_us":[)", us, "]}}")));
    }
    return CheckBusbw({.require_busbw = busbw}, result, slowest);
  }
  BenchPlan plan_;
};

TEST_F(RequirementTest, IsOfTheFastestAllReduceOfTheLargestSize) {
  EXPECT_TRUE(Check(0).ok());
  EXPECT_TRUE(Check(1.49).ok());
  const absl::Status slow = Check(1.6);
  EXPECT_TRUE(absl::IsAborted(slow)) << slow;
  EXPECT_THAT(std::string(slow.message()),
              AllOf(Has("below --require_busbw 1.6 (all_reduce, native ring over tcp"), Has(": 1.5 GB/s)"),
                    Has("the slowest is all_reduce, native direct"), Has(": 0.375 GB/s")));
  EXPECT_THAT(std::string(Check(1.6, "the slowest node is node 1").message()),
              testing::EndsWith("; the slowest node is node 1"));
}

}  // namespace
}  // namespace psring
