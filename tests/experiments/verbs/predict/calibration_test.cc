#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/workloads/devices.h"
#include "experiments/verbs/predict/calibrate_run.h"
#include "experiments/verbs/predict/causes.h"
#include "experiments/verbs/predict/report.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

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

// An exchange beside computation is not felt until it takes longer.
TEST(Fit, OtherStartsFindWhatIsNotFeltFromTheFirst) {
  const auto predict = [](const Constants& constants) -> absl::StatusOr<double> {
    return std::max(1., .2 / constants.at("fraction"));
  };
  const std::vector<FitRow> rows = {{.size = 2, .measured = 2, .predict = predict}};
  EXPECT_NEAR(Fit(rows, {"fraction"})->at("fraction"), FindConstant("fraction")->start, .1);
  EXPECT_NEAR(Fit(rows, {"fraction"}, {Constants{{"fraction", .08}}})->at("fraction"), .1, .01);
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

Cluster Links(double gbit, double latency_us = 25) {
  return {.link_bytes_per_s = gbit * 1e9 / 8, .latency_s = 1e-6 * latency_us};
}

TEST(Causes, DoNotComeFromTheSystemThatIsLeftOut) {
  const PublishedSystem& slow = *FindSystem("tensorflow2").value();
  const CauseRange with = CausesOf(slow.cluster, 1).at("fraction"),
                   without = CausesOf(slow.cluster, 1, &slow).at("fraction");
  EXPECT_LT(with.low, 0.9 * without.low);
  for (const CauseRange& range : {with, without}) {
    EXPECT_LT(range.low, range.expected);
    EXPECT_LT(range.expected, range.high);
    EXPECT_LE(range.high, 1);
  }
}

TEST(Causes, NeverJump) {
  Causes last;
  const auto expect_close = [&](const Causes& now) {
    for (const auto& [name, range] : now) {
      const auto before = last.find(name);
      if (before == last.end()) continue;
      for (double CauseRange::*const end : {&CauseRange::low, &CauseRange::expected, &CauseRange::high})
        EXPECT_NEAR(range.*end / before->second.*end, 1, 0.05) << name << " " << range.*end;
    }
    last = now;
  };
  for (double gbit = 0.1; gbit < 1000; gbit *= 1.01) expect_close(CausesOf(Links(gbit), 0));
  last.clear();
  for (double us = 1; us < 200; us *= 1.01) expect_close(CausesOf(Links(100, us), RdmaShare(Links(100, us))));
}

// A step changes by less than 10% if a number changes by 1%, wherever published systems begin or end.
TEST(Causes, NoStepJumps) {
  const auto step = [](const StrategyRow& strategy, const Cluster& links, int workers, double mb) {
    Workload block{.device = "V100", .batch = 10, .forward_ms = 50, .backward_ms = 50};
    block.tensors = {{"w", static_cast<int64_t>(mb * 250'000) * 4, 50}};
    Cluster cluster = links;
    PredictOptions options{.place = ServerPlace::kDedicated};
    Apply(GuessesOf(CausesOf(links, RdmaShare(links)), workers).front(), cluster, options);
    const PredictCase point{strategy, workers, strategy.uses_servers ? workers : 0};
    return Predictor(block, options).Predict(point, cluster).value().step;
  };
  for (const StrategyRow& strategy : {kRing, kSync}) {
    for (double gbit = 0.5; gbit < 500; gbit *= 1.1) {
      EXPECT_NEAR(step(strategy, Links(1.01 * gbit), 16, 100) / step(strategy, Links(gbit), 16, 100), 1, 0.03)
          << gbit;
      const double us = gbit / 2, mb = gbit;
      EXPECT_NEAR(step(strategy, Links(20, 1.01 * us), 16, 100) / step(strategy, Links(20, us), 16, 100), 1,
                  0.03)
          << us;
      EXPECT_NEAR(step(strategy, Links(20), 16, 1.01 * mb) / step(strategy, Links(20), 16, mb), 1, 0.03)
          << mb;
    }
    for (const int workers : {100, 128, 200, 256}) {
      EXPECT_NEAR(step(strategy, Links(20), workers + 1, 100) / step(strategy, Links(20), workers, 100), 1,
                  0.1)
          << workers;
    }
  }
}

TEST(Causes, RdmaIsRecognizedByTheLatency) {
  EXPECT_LT(RdmaShare(Links(1, 25)), 0.1);
  EXPECT_NEAR(RdmaShare(Links(1, 10)), 0.5, 1e-9);
  EXPECT_GT(RdmaShare(Links(1, 5)), 0.85);
}

TEST(Causes, AreUncertainWhereLinksAreFasterThanAnyPublished) {
  const auto width = [](double gbit) {
    const CauseRange range = CausesOf(Links(gbit), 0).at("fraction");
    return range.high / range.low;
  };
  EXPECT_LT(width(1), width(20));
  EXPECT_LT(width(20), width(400));
}

TEST(Causes, OfANamedSystemAreKnown) {
  const PublishedSystem& system = *FindSystem("horovod-tcp").value();
  const Causes causes = CausesLike(system, system.cluster, 0);
  for (const auto& [name, value] : system.constants) {
    EXPECT_DOUBLE_EQ(causes.at(name).low, value) << name;
    EXPECT_DOUBLE_EQ(causes.at(name).high, value) << name;
  }
  EXPECT_LT(causes.at("latency_us").low, causes.at("latency_us").high);
  const CauseRange computing =
      CausesLike(*FindSystem("aws-ring").value(), system.cluster, 0).at("compute_cv");
  EXPECT_LT(computing.low, computing.high) << "an exchange does not show how computing varies";
  // Its hosts lose less of a slower link.
  Cluster slower = system.cluster;
  slower.link_bytes_per_s /= 10;
  EXPECT_GT(CausesLike(system, slower, 0).at("fraction").expected, causes.at("fraction").expected);
}

TEST(GuessesOf, AreTheExpectedConstantsAndTheEndsOfWhatIsUnknown) {
  const std::vector<Constants> guesses = GuessesOf({{"a", {1, 2, 3}}, {"b", {5, 5, 5}}}, 8);
  EXPECT_THAT(guesses, testing::ElementsAre(Constants{{"a", 2}, {"b", 5}}, Constants{{"a", 1}, {"b", 5}},
                                            Constants{{"a", 3}, {"b", 5}}));
}

TEST(GuessesOf, CombineWhatActsOnACard) {
  const std::vector<Constants> guesses =
      GuessesOf({{"fraction", {0.4, 0.8, 1}}, {"node_loss", {0, 0.5, 1}}}, 4);
  ASSERT_EQ(guesses.size(), 3u);
  // With 4 machines a card keeps 1/(1 + node_loss).
  EXPECT_NEAR(guesses[1].at("fraction"), 0.8 * std::exp(-std::hypot(std::log(2), std::log(2 / 1.5))), 1e-9);
  EXPECT_NEAR(guesses[2].at("fraction"), 0.8 * std::exp(std::hypot(std::log(1.25), std::log(1.5))), 1e-9);
  for (const Constants& guess : guesses) EXPECT_EQ(guess.at("node_loss"), 0.5);
}

TEST(Causes, AWindowLimitsConnectionsOverLongDistances) {
  const auto connection = [](double us, double rdma) {
    Cluster cluster = Links(1, us);
    PredictOptions options;
    Apply(GuessesOf(CausesOf(cluster, rdma), 2).front(), cluster, options);
    return cluster.connection_bytes_per_s;
  };
  EXPECT_NEAR(connection(25'000, 0), 3 * (1 << 20) / 0.05, 1);
  EXPECT_EQ(connection(25, 0), 0);
  EXPECT_EQ(connection(25'000, 1), 0);
}

TEST(RatiosOf, AddsTheSquaresOfTheCausesDeviations) {
  const Interval ratios = RatiosOf({0, -0.3, 0.1, 0, -0.4}, 0);
  EXPECT_NEAR(ratios.low, std::exp(-0.5), 1e-12);
  EXPECT_NEAR(ratios.high, std::exp(0.1), 1e-12);
  EXPECT_NEAR(RatiosOf({0}, ModelError(0)).high, std::exp(ModelError(0)), 1e-12);
  EXPECT_NEAR(ModelError(3), 2 * ModelError(0), 1e-12);
}

Situation LikeBytePs() {
  const PublishedSystem& system = *FindSystem("byteps-tcp").value();
  return {.gpu = "V100, PyTorch, float32",
          .point = {.strategy = kSync, .workers = 64, .servers = 8},
          .options = system.options,
          .cluster = system.cluster};
}

TEST(Differences, AreThoseFromEveryPublishedSystem) {
  EXPECT_THAT(Differences(LikeBytePs()), IsEmpty());
  Situation other = LikeBytePs();
  other.gpu = "H100";
  other.rdma = 1;
  other.point.workers = 512;
  other.point.servers = 1;
  other.cluster.link_bytes_per_s = 50e9;
  other.options.local_aggregation = false;
  const std::string all = absl::StrJoin(Differences(other), "; ");
  for (const char* part : {"H100 (calibrated on V100, K80, Titan X)",
                           "machines with 400 Gbit/s (calibrated from 10 Gbit/s to 100 Gbit/s)",
                           "64 machines (calibrated up to 16)", "servers over RDMA", "no --local_aggregation",
                           "servers: 1 for 64 machines"}) {
    EXPECT_THAT(all, Has(part));
  }
  other.gpu = "2 times as fast as V100";
  EXPECT_THAT(absl::StrJoin(Differences(other), "; "), Has("no known GPU generation"));
}

PredictedRow Row(const StrategyRow& strategy, const std::vector<double>& speeds, const Situation& situation) {
  PredictedRow row{
      .point = situation.point, .single_samples_per_s = 1e3, .situation = situation, .system = "auto"};
  row.point.strategy = strategy;
  row.constants.resize(speeds.size());
  for (const double speed : speeds) row.guesses.push_back({.step = 1, .samples_per_s = speed});
  return row;
}

TEST(Ranges, HoldTheModelsErrorAndWhatTheCausesDo) {
  const double error = std::exp(ModelError(0));
  EXPECT_NEAR(Row(kSync, {100, 100, 100}, LikeBytePs()).samples_per_s().low, 100 / error, 1e-9);
  EXPECT_NEAR(Row(kSync, {100, 100, 100}, LikeBytePs()).samples_per_s().high, 100 * error, 1e-9);
  EXPECT_LT(Row(kSync, {100, 50, 100}, LikeBytePs()).samples_per_s().low, 50);
  Situation far = LikeBytePs();
  far.gpu = "H100";
  EXPECT_EQ(Row(kSync, {100}, far).outside().size(), 1u);
  EXPECT_LT(Row(kSync, {100}, far).samples_per_s().low, 100 / error);
}

TEST(Ranges, AreNeverNarrowerThanTheModelsErrorNorAboveAllComputing) {
  constexpr double kAll = 64 * 1e3;  // of Row's workers, without communication
  for (const double efficiency : {0.01, 0.5, 0.97, 1.0}) {
    for (const double spread : {0.0, 0.3}) {
      const double speed = efficiency * kAll;
      const PredictedRow row = Row(kSync, {speed, speed * (1 - spread), speed * (1 + spread)}, LikeBytePs());
      const Interval range = row.samples_per_s();
      EXPECT_LE(range.low, speed / std::exp(ModelError(0)) * (1 + 1e-9)) << efficiency;
      EXPECT_GE(range.high, speed) << efficiency;
      EXPECT_LE(range.high, kAll) << efficiency;
    }
  }
}

TEST(Ranges, SayWhatNarrowsThem) {
  const Causes published = {{"fraction", {0.5, 0.8, 1}}, {"latency_us", {12, 25, 50}}};
  EXPECT_EQ(
      KnownText({"fraction", "latency_us"}, published, {{"latency_us", {9, 10, 11}}}),
      "Given or measured, so the ranges are narrower: fraction (otherwise 0.5 to 1), latency_us (9 to 11, "
      "otherwise 12 to 50).");
  EXPECT_EQ(KnownText({"barrier_us"}, published, published), "");
}

TEST(Ranges, ACauseThatSlowsBothStrategiesDoesNotHideTheWinner) {
  const Predictor predictor(LoadWorkload("resnet50").value(), {});
  PredictReport report{.predictor = &predictor};
  const auto verdict = [&](const std::vector<double>& ring, const std::vector<double>& sync) {
    report.rows = {Row(kRing, ring, LikeBytePs()), Row(kSync, sync, LikeBytePs())};
    return *VerdictAt(report, MostWorkers(report));
  };
  EXPECT_TRUE(verdict({150, 30, 200}, {100, 20, 133}).shown);
  EXPECT_FALSE(verdict({150, 30, 200}, {100, 80, 133}).shown) << "the ring can be slower";
  EXPECT_FALSE(verdict({105, 100, 110}, {100, 95, 105}).shown) << "within the model's error";
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

TEST(CalibrateRun, DoesNotFitToPipelines) {
  std::string text = RunOf({{"fraction", 0.6}, {"latency_us", 200}}, {2, 4, 8});
  const std::string expected =
      CalibrationText({.steps = ParseRunSteps(text).value(), .strategies = {kRing}}).value();
  text = absl::StrReplaceAll(text, {{"basis\n", "basis,program\n"}, {"measured\n", "measured,\n"}});
  std::string cut_none = "none,2,0,,32,4,10000000,5,60,1000,measured,1f1b\n";
  text.insert(text.find('\n') + 1, cut_none + "ring,16,0,,32,4,10000000,5,60,1000,measured,1f1b\n");
  EXPECT_EQ(CalibrationText({.steps = ParseRunSteps(text).value(), .strategies = {kRing}}).value(),
            absl::StrCat(expected,
                         "Rows of pipelines (--pp) are not used (2): their workers also wait for one "
                         "another's stages.\n"));
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
  EXPECT_NEAR(1e3 * resnet.batch / OnDevice(resnet, "H100")->compute_ms(), 7000, 40);
  EXPECT_THAT(OnDevice(LoadWorkload("bert_base").value(), "A100-tf32").status().message(),
              Has("use --compute_speedup"));
  EXPECT_THAT(OnDevice(LoadWorkload("gnmt").value(), "V100").status().message(), Has("flops_per_sample"));
  EXPECT_EQ(MostMemoryOf(v100.device), 32e9);
  EXPECT_EQ(MostMemoryOf(LoadWorkload("llama_8b")->device), 32e9);
  EXPECT_EQ(MostMemoryOf("2 times as fast as V100"), 0);
  EXPECT_FALSE(ComputesIn16Bits(LoadWorkload("llama_8b").value()));
  EXPECT_TRUE(ComputesIn16Bits(OnDevice(LoadWorkload("llama_8b").value(), "A100").value()));
  EXPECT_FALSE(RecordedOnCpu(LoadWorkload("bert_base").value()));
  EXPECT_TRUE(RecordedOnCpu({.device = "CPU"}));
}

}  // namespace
}  // namespace psring
