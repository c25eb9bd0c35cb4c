#include "experiments/verbs/predict/layout_answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/workloads/workload.h"
#include "experiments/costs/sharded_costs.h"
#include "tests/has.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

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
              Has("--memory needs --layouts auto"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw = {.cluster = "dgx-h100", .sequence_parallel = true}; }),
              Has("--sequence_parallel needs --layouts auto"));
  EXPECT_THAT(
      refusal([](RawPredictFlags& raw) { raw = {.cluster = "dgx-h100", .context_parallel = "ring"}; }),
      Has("--context_parallel needs --layouts auto"));
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
  EXPECT_THAT(refusal("dp8,tp4"), Has("tp4 has 4 workers, not 8; name layouts of one number"));
  EXPECT_THAT(refusal("dp8", "4"), Has("dp8 has 8 workers, not 4"));
  EXPECT_THAT(refusal("tp16"), Has("--layouts tp16 does not divide the 8 heads, 8192 tokens"));
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

}  // namespace
}  // namespace psring
