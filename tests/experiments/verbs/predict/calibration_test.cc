#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/workloads/devices.h"
#include "experiments/verbs/predict/calibrate_run.h"
#include "experiments/verbs/predict/nearest.h"
#include "experiments/verbs/predict/report.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(Fit, FindsTheConstantsOfItsOwnPredictions) {
  std::vector<FitRow> rows;
  const Constants truth = {{"fraction", 0.5}, {"latency_us", 40}};
  for (const int workers : {2, 4, 8, 16, 32, 64}) {
    const auto predict = [workers](const Constants& constants) -> absl::StatusOr<double> {
      return 1 / constants.at("fraction") + 1e-3 * workers * constants.at("latency_us");
    };
    rows.push_back({.size = workers, .measured = predict(truth).value(), .predict = predict});
  }
  const Constants fitted = Fit(rows, {"fraction", "latency_us"}).value();
  EXPECT_NEAR(fitted.at("fraction"), 0.5, 0.03);
  EXPECT_NEAR(fitted.at("latency_us"), 40, 3);
}

TEST(Fit, AConstantThatNoRowDeterminesStaysAtItsStart) {
  const auto predict = [](const Constants& constants) -> absl::StatusOr<double> {
    return 1 / constants.at("fraction");
  };
  const std::vector<FitRow> rows = {{.size = 2, .measured = 2, .predict = predict}};
  const Constants fitted = Fit(rows, {"fraction", "latency_us"}).value();
  EXPECT_NEAR(fitted.at("fraction"), 0.5, 0.02);
  EXPECT_DOUBLE_EQ(fitted.at("latency_us"), FindConstant("latency_us")->start);
}

TEST(PublishedSystems, EachHasAtMostTwoConstantsAndIsNamedOnce) {
  std::set<std::string> names;
  for (const PublishedSystem& system : PublishedSystems()) {
    EXPECT_TRUE(names.insert(system.name).second) << system.name;
    EXPECT_LE(system.fitted.size(), 2u) << system.name;
    ASSERT_EQ(system.constants.size(), system.fitted.size()) << system.name;
    for (const std::string& name : system.fitted) EXPECT_TRUE(system.constants.contains(name)) << name;
    for (const PublishedModel& model : system.models) EXPECT_GE(model.rows.size(), 2u) << system.name;
  }
  EXPECT_THAT(FindSystem("byteps").status().message(), Has("use auto, none or one of byteps-tcp"));
}

// Fits all systems: a few seconds.
TEST(PublishedSystems, WithheldRunsArePredictedWithinTheStatedErrors) {
  std::vector<CheckedSystem> checked;
  std::vector<double> errors;
  for (const PublishedSystem& system : PublishedSystems()) {
    for (const CheckedRow& row : checked.emplace_back(CheckSystem(system).value()).rows) {
      if (row.withheld) errors.push_back(std::abs(row.error()));
    }
    // The registry holds what the fit finds.
    for (const auto& [name, value] : checked.back().all)
      EXPECT_NEAR(system.constants.at(name) / value, 1, 0.03) << system.name << " " << name << " " << value;
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], 0.10);
  EXPECT_LE(errors.back(), 0.30);
  EXPECT_LE(FactorOf(checked, 0.9), kCalibratedFactor);
  EXPECT_LE(kCalibratedFactor * kCalibratedFactor, 1.5);
  const std::string text = PublishedText(checked);
  for (const PublishedSystem& system : PublishedSystems()) EXPECT_THAT(text, HasSubstr(system.name));
}

Situation LikeBytePs() {
  const PublishedSystem& system = *FindSystem("byteps-tcp").value();
  return {.gpu = "V100, PyTorch, float32",
          .point = {.strategy = kSync, .workers = 64, .servers = 8},
          .options = system.options,
          .cluster = system.cluster};
}

TEST(NearestSystem, IsTheSystemItselfInItsOwnSituation) {
  EXPECT_STREQ(NearestSystem(LikeBytePs()).name, "byteps-tcp");
  EXPECT_TRUE(SameEnvironment(LikeBytePs(), NearestSystem(LikeBytePs())));
  EXPECT_THAT(Differences(LikeBytePs(), NearestSystem(LikeBytePs())), IsEmpty());
  Situation rdma = LikeBytePs();
  rdma.point = {.strategy = kRing, .workers = 32};
  rdma.rdma = true;
  rdma.cluster.link_bytes_per_s = 12.5e9;
  EXPECT_TRUE(NearestSystem(rdma).rdma);
}

TEST(NearestSystem, NamesEveryDifference) {
  Situation other = LikeBytePs();
  other.gpu = "H100";
  other.point.workers = 512;
  other.point.servers = 1;
  other.cluster.link_bytes_per_s = 50e9;
  other.options.local_aggregation = false;
  const PublishedSystem& system = *FindSystem("byteps-tcp").value();
  const std::string all = absl::StrJoin(Differences(other, system), "; ");
  for (const char* part :
       {"H100 (calibrated on V100)", "calibrated at 20 Gbit/s", "64 machines (calibrated up to 8)",
        "no --local_aggregation", "servers: 1 for 64 machines"}) {
    EXPECT_THAT(all, Has(part));
  }
  EXPECT_FALSE(SameEnvironment(other, system));
}

PredictedRow Row(const StrategyRow& strategy, double samples_per_s, const Situation& situation) {
  PredictedRow row{.point = situation.point, .single_samples_per_s = 1, .situation = situation};
  row.point.strategy = strategy;
  row.nearest = FindSystem("byteps-tcp").value();
  for (const double factor : {1.0, 0.5, 1.0})
    row.guesses.push_back({.step = 1, .samples_per_s = samples_per_s * factor});
  return row;
}

TEST(CalibratedRange, IsTheFactorInsideAndWiderOutside) {
  const PredictedRow inside = Row(kSync, 100, LikeBytePs());
  EXPECT_FALSE(inside.extrapolated());
  EXPECT_DOUBLE_EQ(inside.samples_per_s().low, 100 / kCalibratedFactor);
  EXPECT_DOUBLE_EQ(inside.samples_per_s().high, 100 * kCalibratedFactor);
  Situation far = LikeBytePs();
  far.gpu = "H100";
  EXPECT_TRUE(Row(kSync, 100, far).extrapolated());
  EXPECT_DOUBLE_EQ(Row(kSync, 100, far).samples_per_s().low, 50);
}

TEST(CalibratedRange, ExtrapolatedWinnersNeedRangesThatDoNotOverlap) {
  Predictor predictor(LoadWorkload("resnet50").value(), {});
  Situation far = LikeBytePs();
  far.gpu = "H100";
  PredictReport report{.predictor = &predictor};
  report.rows = {Row(kRing, 150, far), Row(kSync, 100, far)};
  EXPECT_TRUE(VerdictAt(report, MostWorkers(report))->extrapolated);
  EXPECT_FALSE(VerdictAt(report, MostWorkers(report))->shown);  // 75 to 100 is in both ranges
  report.rows.front() = Row(kRing, 300, far);
  EXPECT_TRUE(VerdictAt(report, MostWorkers(report))->shown);
  report.rows = {Row(kRing, 150, LikeBytePs()), Row(kSync, 100, LikeBytePs())};
  EXPECT_FALSE(VerdictAt(report, MostWorkers(report))->extrapolated);
  EXPECT_TRUE(VerdictAt(report, MostWorkers(report))->shown);
}

constexpr char kHead[] =
    "strategy,workers,servers,placement,batch_per_worker,bucket_mb,parameters,step_ms,compute_ms,link_mbps,"
    "basis\n";

// Steps of a run as the model itself predicts them with `truth`.
std::string RunOf(const Constants& truth, const std::vector<int>& workers) {
  std::string csv = kHead;
  for (const int n : workers) {
    Workload workload{.device = "x", .batch = 32, .forward_ms = 20, .backward_ms = 40};
    for (int i = 0; i < 10; ++i)
      workload.tensors.push_back({.name = "b", .bytes = 4'000'000, .ready_ms = 4.0 * (i + 1)});
    Cluster cluster{.link_bytes_per_s = 1e9 / 8};
    PredictOptions options{.buckets = {.first_mb = 1, .others_mb = 4}};
    Apply(truth, cluster, options);
    const double step =
        Predictor(workload, options).Predict({.strategy = kRing, .workers = n}, cluster)->step;
    absl::StrAppendFormat(&csv, "none,%d,0,,32,4,10000000,60,60,1000,measured\n", n);
    absl::StrAppendFormat(&csv, "ring,%d,0,,32,4,10000000,%.6f,60,1000,measured\n", n, 1e3 * step);
  }
  return csv;
}

TEST(CalibrateRun, FindsTheConstantsOfTheRunAndPredictsItsLargest) {
  const absl::StatusOr<std::vector<RunStep>> steps =
      ParseRunSteps(RunOf({{"fraction", 0.6}, {"latency_us", 200}}, {2, 4, 8}));
  ASSERT_TRUE(steps.ok()) << steps.status();
  const std::string text = CalibrationText({.steps = *steps, .strategies = {kRing}}).value();
  EXPECT_THAT(text, Has("withheld", "--fraction 0.6"));
}

TEST(CalibrateRun, ReadsARunThatASpreadsheetHasSaved) {
  std::string text = "\xEF\xBB\xBF";
  for (const char c : RunOf({{"fraction", 0.6}}, {2, 4}))
    text += c == ',' ? ";" : c == '.' ? "," : c == '\n' ? ";;\r\n" : std::string(1, c);
  const auto steps = ParseRunSteps(text).value();
  const auto same = ParseRunSteps(RunOf({{"fraction", 0.6}}, {2, 4})).value();
  ASSERT_EQ(steps.size(), same.size());
  for (size_t i = 0; i < same.size(); ++i) EXPECT_EQ(steps[i].step_s, same[i].step_s);
}

TEST(CalibrateRun, BadInputSaysWhatIsMissing) {
  EXPECT_THAT(ParseRunSteps("a,b\n1,2\n").status().message(), Has("no column strategy"));
  EXPECT_THAT(ParseRunSteps(kHead).status().message(), Has("no row"));
  const auto one = ParseRunSteps(RunOf({{"fraction", 0.6}}, {2})).value();
  EXPECT_THAT(CalibrationText({.steps = one, .strategies = {kRing}}).status().message(),
              Has("--workers 2,4"));
}

// The exchanges of a ring as the model itself predicts them, as in a bench.json.
std::string BenchOf(const Constants& truth, const std::vector<int>& workers, int per_node = 1) {
  std::vector<std::string> rows;
  for (const int n : workers) {
    for (const double bytes : {65536.0, 1048576.0, 16777216.0}) {
      Cluster cluster{.link_bytes_per_s = 1e9 / 8};
      PredictOptions options;
      Apply(truth, cluster, options);
      const Predictor predictor({.tensors = {{.name = "w", .bytes = 4}}}, options);
      const double seconds =
          predictor.ExchangeSeconds({.strategy = kRing, .workers = n}, cluster, bytes).value();
      rows.push_back(absl::StrFormat(
          R"({"size":%.0f,"type":"float","collective":"all_reduce","backend":"native","algorithm":"ring",)"
          R"("transport":"tcp","workers":%d,"out_of_place":{"time":%.6f}})",
          bytes, n, 1e6 * seconds));
    }
  }
  return absl::StrFormat(R"({"results":[%s],"network":{"mb_per_s":125,"nproc_per_node":%d}})",
                         absl::StrJoin(rows, ","), per_node);
}

TEST(CalibrateRun, FitsTheExchangesOfABenchmarkOfSeveralMachines) {
  const auto steps = ParseBenchSteps(BenchOf({{"fraction", 0.6}, {"latency_us", 200}}, {2, 4, 8})).value();
  EXPECT_EQ(steps.size(), 9u);
  const auto text = CalibrationText({.steps = steps, .strategies = {kRing}}).value();
  EXPECT_THAT(text, Has("ring 16M", "withheld", "--fraction 0.6"));
}

TEST(CalibrateRun, RejectsABenchmarkThatItCannotFit) {
  for (const auto& [json, why] :
       {std::pair(R"({"results":[]})", "a benchmark of one machine"),
        {R"({"results":[],"network":{"mb_per_s":1,"nproc_per_node":1}})", "no all-reduce or server round"},
        {R"({"results":[],"network":{"mb_per_s":-1,"nproc_per_node":1}})", "mb_per_s"},
        {"broken", "not a JSON object"}}) {
    EXPECT_THAT(ParseBenchSteps(json).status().message(), Has(why)) << json;
  }
  const auto steps = ParseBenchSteps(BenchOf({{"fraction", 0.6}}, {2, 4}, 2)).value();
  EXPECT_THAT(CalibrationText({.steps = steps, .strategies = {kRing}}).status().message(),
              Has("add --gpus_per_node 2"));
}

TEST(CalibrateRun, ErrorsNameTheLine) {
  const std::string head = std::string(kHead) + "none,2,0,,32,4,100,60,60,1000,measured\n";
  for (const auto& [row, what] :
       {std::pair("ring,2,0,,32,4,100,x,60,1000,measured", "line 3: step_ms 'x' is not a number from 0"),
        {"ring,4294967298,0,,32,4,100,60,60,1000,measured", "line 3: workers '4294967298' is not"},
        {"ring,2,0,,32,4,1e300,60,60,1000,measured", "line 3: parameters '1e300' is not"},
        {"ring,2.5,0,,32,4,100,60,60,1000,measured", "line 3: workers '2.5' is not a whole number"},
        {"ring,2,0,,32,4,100,60,5,60,1000,measured", "line 3: it has 12 fields; the header has 11"},
        {"\"ring,2,0,,32,4,100,60,60,1000,measured", "line 3: a quote is not closed"}}) {
    EXPECT_THAT(ParseRunSteps(head + row).status().message(), Has(what)) << row;
  }
  const auto steps = ParseRunSteps(RunOf({{"fraction", 0.6}}, {2, 4})).value();
  const Workload idle{.batch = 1, .tensors = {{.name = "w", .bytes = 4}}};
  EXPECT_THAT(CalibrationText({.steps = steps, .workload = idle, .strategies = {kRing}}).status().message(),
              Has("the times of --workload are 0"));
}

TEST(Devices, ComputeAWorkloadAtTheMeasuredSpeed) {
  const Workload resnet = LoadWorkload("resnet50").value();
  const Workload v100 = OnDevice(resnet, "V100").value();
  EXPECT_NEAR(1e3 * v100.batch / v100.compute_ms(), 367.3, 4);  // the measured images/s
  EXPECT_NEAR(v100.forward_ms / v100.backward_ms, resnet.forward_ms / resnet.backward_ms, 1e-9);
  EXPECT_NEAR(1e3 * 32 / OnDevice(LoadWorkload("bert_base").value(), "V100")->compute_ms(), 119.6, 1.5);
  EXPECT_THAT(OnDevice(resnet, "V200").status().message(), Has("use one of V100"));
  EXPECT_THAT(OnDevice(resnet, "H100").status().message(), Has("use --compute_speedup"));
  EXPECT_THAT(OnDevice(LoadWorkload("gnmt").value(), "V100").status().message(), Has("flops_per_sample"));
  EXPECT_EQ(MostMemoryOf(v100.device), 32e9);
  EXPECT_EQ(MostMemoryOf(LoadWorkload("llama_8b")->device), 32e9);
  EXPECT_EQ(MostMemoryOf("2 times as fast as V100"), 0);
  EXPECT_FALSE(RecordedOnCpu(LoadWorkload("bert_base").value()));
  EXPECT_TRUE(RecordedOnCpu({.device = "CPU"}));
}

}  // namespace
}  // namespace psring
