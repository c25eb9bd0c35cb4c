// What the wire of servers costs: fitted to rounds of a benchmark, and used by predictions and calibrations.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/costs/machine_profile.h"
#include "experiments/verbs/predict/calibrate_run.h"
#include "experiments/verbs/predict/predict.h"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

using testing::ElementsAre;

std::string ExchangeRow(const std::string& collective, const std::string& backend, int workers, double bytes,
                        double us) {
  return absl::StrFormat(
      R"({"collective":"%s","backend":"%s","type":"float","algorithm":"%s","transport":"tcp","workers":%d,)"
      R"("size":%.0f,"out_of_place":{"time":%.6f}})",
      collective, backend, collective == "all_reduce" ? "ring" : "sync", workers, bytes, us);
}

// On one machine whose processors move 1 GB/s over gRPC and 4 GB/s over psring's connections.
std::string BenchWithServers(const std::string& network = "") {
  std::vector<std::string> rows;
  for (const double bytes : {65536.0, 1048576.0, 16777216.0}) {
    rows.push_back(ExchangeRow("all_reduce", "native", 2, bytes, 100 + bytes / 1e3));
    rows.push_back(ExchangeRow("all_reduce", "native", 4, bytes, 300 + 3 * bytes / 1e3));
    for (const int workers : {1, 2, 4}) {
      rows.push_back(ExchangeRow("ps_push_pull", "grpc", workers, bytes, 100 + 2 * workers * bytes / 1e3));
      rows.push_back(ExchangeRow("ps_push_pull", "stream", workers, bytes, 100 + 2 * workers * bytes / 4e3));
    }
  }
  return absl::StrCat("{\"results\":[", absl::StrJoin(rows, ","), "]", network, "}");
}

TEST(ServerWire, IsFittedToTheRoundsOfABenchmark) {
  const MachineProfile profile = ProfileOfBench("bench.json", BenchWithServers()).value();
  EXPECT_NEAR(profile.server_bytes_per_s.at("grpc").value, 1e9, 1e5);
  EXPECT_NEAR(profile.server_bytes_per_s.at("stream").value, 4e9, 1e5);
  EXPECT_NEAR(ServerSecondsPerByte(profile, "grpc"), 0.5e-9, 1e-13);
  EXPECT_NEAR(ServerSecondsPerByte(profile, "stream"), 0.125e-9, 1e-13);
  EXPECT_THAT(Describe(profile), Has("Servers' rounds over grpc move 1 GB/s", "takes 0.125 ns per byte"));
  EXPECT_EQ(ServerSecondsPerByte(MachineProfile(), "grpc"), 0);
}

// Each worker pushes and pulls 25 MB through one dedicated server.
TEST(ServerWire, PredictionsUseTheMeasuredCostOfTheWire) {
  const TestFolder folder;
  const std::string bench = folder.Put("bench.json", BenchWithServers());
  RawPredictFlags raw{.workers = "4", .link = "400gbit", .profile = bench};
  const auto host = [&raw] { return UnderstandPredict(raw, {})->cluster.server_worker_s_per_byte; };
  EXPECT_NEAR(host(), 0.5e-9, 1e-13) << "the default is gRPC";
  raw.server_wire = "stream";
  EXPECT_NEAR(host(), 0.125e-9, 1e-13);
  const PredictFlags flags = UnderstandPredict(raw, {}).value();
  EXPECT_TRUE(flags.given.contains("server_worker_ns")) << "published systems do not replace it";
  raw.server_worker_ns = 2;
  EXPECT_NEAR(host(), 2e-9, 1e-15) << "a flag takes precedence";
}

TEST(ServerWire, WithoutAMeasurementTheFlagIsRejected) {
  EXPECT_THAT(UnderstandPredict({.link = "10gbit", .server_wire = "stream"}, {}).status().message(),
              Has("--server_wire stream needs the measured cost of this wire: --profile"));
  EXPECT_EQ(UnderstandPredict({.link = "10gbit"}, {})->cluster.server_worker_s_per_byte, 0);
}

std::vector<double> Milliseconds(const std::vector<RunStep>& steps) {
  std::vector<double> ms;
  for (const RunStep& step : steps) ms.push_back(1e3 * step.step_s);
  return ms;
}

TEST(ServerWire, ACalibrationUsesTheRowsOfOneWire) {
  const std::string run =
      "strategy,workers,servers,step_ms,basis,wire\n"
      "ring,2,0,10,measured,TCP\n"
      "ps-sync,2,1,30,measured,\"shared memory, gRPC over TCP\"\n"
      "ps-sync,2,1,20,measured,\"shared memory, TCP\"\n"
      "ps-async,2,1,15,measured,\n";
  EXPECT_THAT(Milliseconds(ParseRunSteps(run).value()), ElementsAre(10, 30, 15));
  EXPECT_THAT(Milliseconds(ParseRunSteps(run, "stream").value()), ElementsAre(10, 20, 15));

  const std::string bench = BenchWithServers(R"(,"network":{"mb_per_s":125,"nproc_per_node":1})");
  const auto servers = [&bench](const std::string& wire) {
    double seconds = 0;
    for (const RunStep& step : ParseBenchSteps(bench, wire).value()) seconds += step.servers * step.step_s;
    return seconds;
  };
  EXPECT_GT(servers("grpc"), 3 * servers("stream"));
}

}  // namespace
}  // namespace psring
