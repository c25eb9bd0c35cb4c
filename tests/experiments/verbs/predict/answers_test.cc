#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/workloads/workload.h"
#include "experiments/costs/machine_profile.h"
#include "experiments/costs/sharded_costs.h"
#include "experiments/design/plan.h"
#include "experiments/one_gpu.h"
#include "experiments/verbs/predict/calibrate_run.h"
#include "experiments/verbs/predict/layout_answer.h"
#include "experiments/verbs/predict/predict.h"
#include "tests/has.h"
#include "tests/test_folder.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

using testing::ElementsAre;

std::string AnswerTo(const RawPredictFlags& raw) {
  return ReportOfLayouts(UnderstandPredict(raw, {}).value()).value().text;
}

// Without line breaks.
std::string InOneLine(const std::string& text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

// Of a table: other texts have no two spaces in a row.
bool IsRow(absl::string_view line) {
  return absl::StrContains(line, "  ") &&
         std::ranges::any_of(std::array{"dp", "pp", "tp", "cp"},
                             [&](const char* axis) { return absl::StartsWith(line, axis); });
}

RawPredictFlags OnDevices(const std::string& workers) { return {.workers = workers, .layouts = "auto"}; }

TEST(LayoutAnswer, TheBestFiveHaveTheirFiguresAndWhatWouldChangeThem) {
  RawPredictFlags raw = OnDevices("64");
  raw.memory = "80GB";
  raw.gpus_per_node = 8;
  const std::string text = AnswerTo(raw);
  EXPECT_THAT(InOneLine(text),
              Has("Layouts of 64 devices for llama_8b: 8.03 billion parameters, 16 bits with float32 "
                  "master weights, Adam; 64 samples of 8192 tokens a step.",
                  "fit into 80.0 GiB per device", "range of", "9 in 10", "Verdict (simulated): "));
  int rows = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(TextColumns(std::string(line)), 110u) << line;
    rows += IsRow(line);
  }
  EXPECT_EQ(rows, 10) << "five in each of two tables";
}

TEST(LayoutAnswer, AFloat32DeviceKeepsFloat32) {
  RawPredictFlags raw{.workload = "gpt2", .workers = "8", .link = "10gbit", .layouts = "auto"};
  EXPECT_THAT(InOneLine(AnswerTo(raw)),
              Has("float32, Adam; 64 samples of 1024 tokens a step.", "fit into 29.8 GiB"));
}

TEST(LayoutAnswer, TheChineseTextHasTheSameLayouts) {
  RawPredictFlags raw{.workload = "gpt_mini", .workers = "4", .link = "1gbit", .layouts = "auto"};
  const std::string english = AnswerTo(raw);
  const std::string chinese = InLanguage(Language::kChinese, [&] { return AnswerTo(raw); });
  EXPECT_NE(english, chinese);
  for (const absl::string_view line : absl::StrSplit(english, '\n')) {
    if (!IsRow(line)) continue;
    EXPECT_THAT(chinese, Has(line));
  }
}

TEST(LayoutAnswer, ARatioSharesTheCausesOfOneFamily) {
  const auto ranged = [](double seconds, bool gathers, std::vector<double> logs) {
    RangedLayout layout{.gathers = gathers, .logs = std::move(logs)};
    layout.found.price.step_s = seconds;
    return layout;
  };
  // The links' share: half or twice the speed of both.
  const std::vector<double> logs = {0, -std::log(2.), std::log(2.)};
  const RangedLayout fast = ranged(1, false, logs), slow = ranged(1.5, false, logs),
                     gathering = ranged(1.5, true, logs);
  const Interval same = RatioOf(fast, slow, 0), other = RatioOf(fast, gathering, 0);
  EXPECT_NEAR(same.low, 1.5, 1e-9);
  EXPECT_NEAR(same.high, 1.5, 1e-9);
  EXPECT_NEAR(other.high, 1.5 * std::exp(std::sqrt(2) * std::log(2.)), 1e-9);
  EXPECT_LT(other.low, 1) << "no winner between families with such ranges";
  EXPECT_NEAR(RatioOf(fast, slow, .1).low, 1.5 * std::exp(-std::sqrt(2) * .1), 1e-9);
}

TEST(LayoutAnswer, ItNamesWhatTheTrainerDoesNotCombine) {
  LayoutQuestion question{.model = {.heads = 8}, .workers = 8};
  std::vector<FoundLayout> best(4);
  best[0].candidate = {.dp = 8, .strategy = &ShardingStrategy("fsdp")};
  best[1].candidate = {.dp = 4, .pp = 2, .strategy = &ShardingStrategy("zero2")};
  best[1].candidate.program = FindStepProgram("1f1b").value();
  best[2].candidate = {.dp = 4, .tp = 2};
  best[3].candidate = {.dp = 4, .tp = 2, .strategy = &ShardingStrategy("fsdp")};
  EXPECT_EQ(WhatIsNotTrained(question, best), "");
  question.model.sixteen_bits = true;
  EXPECT_EQ(WhatIsNotTrained(question, best), "");
  question.model.tokens = 31;
  question.model.sequence_parallel = true;
  EXPECT_THAT(WhatIsNotTrained(question, best),
              Has(" psring train cannot run dp4xtp2, dp4xtp2 fsdp (the first: --sequence_parallel"));
  best.resize(1);
  EXPECT_EQ(WhatIsNotTrained(question, best), "");
}

TEST(LayoutAnswer, BadInputIsOneLineWithARemedy) {
  const auto refusal = [](auto change) {
    RawPredictFlags raw = OnDevices("8");
    change(raw);
    const std::string message(UnderstandPredict(raw, {}).status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  EXPECT_EQ(refusal([](RawPredictFlags&) {}), "");
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.pp = 2; }),
              Has("--layouts and --pp exclude each other"));
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.out = "x"; }), "");
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.copy_streams = 1; }),
              Has("--layouts and --copy_streams"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.bucket_mb = 1; }), Has("--bucket_mb"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.dp_shard = 2; }), Has("--layouts and --dp_shard"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.connection = "1gbit"; }), Has("--connection"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.system = "horovod"; }), Has("--system"));
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.system = "none"; }), "");
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.fraction = .8; }), "");
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.sequence_parallel = true; }), "");
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.workers = "8,16"; }), Has("one number of --workers"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw = {.cluster = "dgx-h100", .memory = "80GB"}; }),
              Has("--memory needs --layouts: auto, or names such as dp4,dp2xcp2"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw = {.cluster = "dgx-h100", .sequence_parallel = true}; }),
              Has("--sequence_parallel needs --layouts: auto, or names"));
  EXPECT_THAT(
      refusal([](RawPredictFlags& raw) { raw = {.cluster = "dgx-h100", .context_parallel = "ring"}; }),
      Has("--context_parallel needs --layouts: auto, or names"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.layouts = "dp8", raw.context_parallel = "ring"; }),
              Has("--context_parallel needs a layout that divides sequences"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.layouts = "dp8", raw.sequence_parallel = true; }),
              Has("--sequence_parallel needs a layout that divides matrices"));
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.layouts = "dp8,dp4xtp2", raw.sequence_parallel = true; }),
            "");
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.micro_batches = 2; }), "");
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.strategies = "allreduce,fsdp"; }), "");
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.strategies = "ps-sync"; }),
              Has("ps-sync is not a strategy of the replicas; use one of ring, zero1, zero2, fsdp"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.workload = "resnet50"; }), Has("use one of gpt2"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.workers = "12"; }), Has("do not fill nodes of 8"));
}

TEST(LayoutAnswer, LayoutsThatAreNamedMustBePossible) {
  const auto refusal = [](const std::string& layouts, const std::string& workers = "") {
    return std::string(UnderstandPredict({.workers = workers, .layouts = layouts}, {}).status().message());
  };
  EXPECT_EQ(refusal("dp8,dp4xcp2,tp8"), "");
  EXPECT_EQ(refusal("dp2xcp2"), "") << "the workers are those of the layouts";
  EXPECT_THAT(refusal("dp8x"), Has("--layouts: 'dp8x' is not a layout"));
  EXPECT_THAT(refusal("dp8,dp8"), Has("--layouts names dp8 twice"));
  EXPECT_THAT(refusal("dp8,tp4"), Has("tp4 has 4 workers, not 8; name layouts with equally many workers"));
  EXPECT_THAT(refusal("dp8", "4"), Has("dp8 has 8 workers, not 4"));
  EXPECT_THAT(refusal("tp16"), Has("--layouts tp16 does not divide the 8 heads, 8192 tokens"));
  RawPredictFlags raw{.layouts = "tp8", .sequence_parallel = true};
  EXPECT_EQ(UnderstandPredict(raw, {}).status().message(), "");
  raw.layouts = "tp8,dp4xcp2";
  EXPECT_EQ(UnderstandPredict(raw, {}).status().message(),
            "--layouts dp4xcp2 and --sequence_parallel exclude each other; omit one of them");
}

// Columns by name, of each line.
std::vector<std::map<std::string, std::string>> CsvRows(const std::string& csv) {
  std::vector<std::map<std::string, std::string>> lines;
  std::vector<std::string> columns;
  for (const absl::string_view line : absl::StrSplit(csv, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    if (columns.empty()) {
      columns = fields;
      continue;
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      if (i == 0) lines.emplace_back();
      lines.back()[columns[i]] = fields.at(i);
    }
  }
  return lines;
}

// Of the others there are more than five, by strategy and what attention exchanges, all faster than tp8.
TEST(LayoutAnswer, EachLayoutThatIsNamedIsShownIfItFits) {
  RawPredictFlags raw{.layouts = "dp8,dp4xcp2,cp8,tp8"};
  const auto shown_of = [](const LayoutsReport& report) {
    std::set<std::string> shown;
    for (const auto& line : CsvRows(report.csv)) shown.insert(line.at("layout"));
    return shown;
  };
  const auto report = [&] { return ReportOfLayouts(UnderstandPredict(raw, {}).value()).value(); };
  EXPECT_THAT(shown_of(report()), ElementsAre("cp8", "dp4xcp2", "dp8", "tp8"));
  raw.memory = "30GB";
  EXPECT_THAT(shown_of(report()), ElementsAre("cp8", "tp8"));
  EXPECT_THAT(report().text, Has("These need more memory: dp8, dp4xcp2.\n"));
}

TEST(LayoutAnswer, ALayoutThatIsNamedHasItsFiguresInAFile) {
  // Computing takes no time.
  const RawPredictFlags raw{.workload = "gpt_mini",
                            .strategies = "ring",
                            .link = "1gbit",
                            .system = "none",
                            .fraction = 1,
                            .compute_speedup = 1e9,
                            .batch = 2,
                            .micro_batches = 2,
                            .layouts = "cp2",
                            .memory = "80GB",
                            .context_parallel = "contiguous"};
  const LayoutsReport report = ReportOfLayouts(UnderstandPredict(raw, {}).value()).value();
  const auto lines = CsvRows(report.csv);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].at("layout"), "cp2");
  EXPECT_EQ(lines[0].at("context_parallel"), "contiguous");
  EXPECT_EQ(lines[0].at("micro_batches"), "2");
  EXPECT_EQ(lines[0].at("samples"), "2");
  // Keys and values of 6 layers: 2 h values of 128 tokens, 3 times; and the gradient of 10.8 million
  // parameters.
  const double keys = 4. * 2 * 128 * (2 * 384) * 3 * 6, gradient = LoadWorkload("gpt_mini")->bytes();
  EXPECT_NEAR(std::stod(lines[0].at("sent_between_bytes")), 2 * keys + gradient, 1);
  const double step_ms = std::stod(lines[0].at("step_ms"));
  EXPECT_GT(step_ms, 1e3 * std::max(2 * keys, gradient) / 125e6);
  EXPECT_LT(step_ms, 1.01 * 1e3 * (2 * keys + gradient) / 125e6);
}

TEST(LayoutAnswer, WhatFitsNowhereIsRefusedWithTheSmallest) {
  RawPredictFlags raw = OnDevices("2");
  raw.memory = "1GB";
  const absl::Status status = ReportOfLayouts(UnderstandPredict(raw, {}).value()).status();
  EXPECT_THAT(std::string(status.message()), Has("no layout of 2 devices fits llama_8b into 1.0 GiB"));
}

// What a comparison on one GPU simulates, and from what.

TEST(OneGpu, IsExceededByMoreWorkersUnlessAFlagAllowsIt) {
  CompareOptions asked;
  asked.training.device = "auto";
  CompareOptions cuda = asked, cpu = asked, one = asked, oversubscribed = asked, replayed = asked,
                 simulated = asked;
  cuda.training.device = oversubscribed.training.device = "cuda";
  cpu.training.device = "cpu";
  one.workers = {1};
  oversubscribed.training.oversubscribe = true;
  replayed.training.workload = "resnet50";
  simulated.training.clock = "virtual";
  for (const CompareOptions& options : {asked, cuda}) EXPECT_TRUE(GoesBeyondOneGpu(options, 1));
  for (const int gpus : {0, 2}) EXPECT_FALSE(GoesBeyondOneGpu(asked, gpus));
  for (const CompareOptions& options : {cpu, one, oversubscribed, replayed, simulated}) {
    EXPECT_FALSE(GoesBeyondOneGpu(options, 1));
  }
}

// Two buckets, the second at the end of backward; the first so many ms before it.
StepRecord StepWith(std::vector<double> before_end_ms, bool warmup = false) {
  StepRecord step{.warmup = warmup};
  for (const double before : before_end_ms)
    step.buckets.push_back({.ready_ns = 1'000'000'000 - static_cast<int64_t>(1e6 * before)});
  return step;
}

RunRecords Records(std::vector<StepRecord> steps) {
  RunRecords records;
  records.ranks.emplace_back();
  records.ranks[0].device = "cuda:0";
  records.ranks[0].ddp = {.bucket_bytes = {12},
                          .has_rebuilt_buckets = true,
                          .rebuilt_bucket_bytes = {400, 80, 4},
                          .forward_ms = 2,
                          .backward_ms = 5};
  records.steps.push_back(std::move(steps));
  return records;
}

TEST(OneGpu, LayerTimesAreMeansOfTheMeasuredSteps) {
  const Configuration configuration;
  const RunRecords records =
      Records({StepWith({99, 98, 0}, /*warmup=*/true), StepWith({4, 1, 0}), StepWith({3, 2, 0})});
  const Workload workload = WorkloadOf(records, configuration).value();
  ASSERT_EQ(workload.tensors.size(), 3);
  EXPECT_DOUBLE_EQ(workload.tensors[0].ready_ms, 1.5);
  EXPECT_DOUBLE_EQ(workload.tensors[1].ready_ms, 3.5);
  EXPECT_DOUBLE_EQ(workload.tensors[2].ready_ms, 5);
  EXPECT_EQ(workload.bytes(), 484);

  const Workload read = ParseWorkload("file", WorkloadCsv(workload)).value();
  EXPECT_EQ(read.device, "cuda:0");
  EXPECT_EQ(read.batch, configuration.training.batch);
  EXPECT_DOUBLE_EQ(read.forward_ms, 2);
  EXPECT_DOUBLE_EQ(read.backward_ms, 5);
  ASSERT_EQ(read.tensors.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.tensors[i].bytes, workload.tensors[i].bytes);
    EXPECT_DOUBLE_EQ(read.tensors[i].ready_ms, workload.tensors[i].ready_ms);
  }
}

TEST(OneGpu, TimesStayInOrderDespiteClockErrors) {
  const Workload workload = WorkloadOf(Records({StepWith({7, 8, 0})}), Configuration()).value();
  EXPECT_DOUBLE_EQ(workload.tensors[0].ready_ms, 0);
  EXPECT_DOUBLE_EQ(workload.tensors[1].ready_ms, 0);
  EXPECT_TRUE(ParseWorkload("file", WorkloadCsv(workload)).ok());
}

TEST(OneGpu, WithoutAMeasuredStepThereIsNoPrediction) {
  EXPECT_EQ(WorkloadOf(Records({StepWith({1, 0, 0}, /*warmup=*/true)}), Configuration()).status().code(),
            absl::StatusCode::kNotFound);
}

// What the wire of servers costs: fitted to rounds of a benchmark, and used by predictions and calibrations.

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
