#include "experiments/verbs/predict/layout_answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "experiments/costs/sharded_costs.h"
#include "tests/has.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

std::string AnswerTo(const RawPredictFlags& raw) {
  return LayoutsText(UnderstandPredict(raw, {}).value()).value();
}

// Without line breaks.
std::string InOneLine(const std::string& text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

// Of a table: other texts have no two spaces in a row.
bool IsRow(absl::string_view line) {
  return absl::StrContains(line, "  ") &&
         std::ranges::any_of(std::array{"dp", "pp", "tp"},
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
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.out = "x"; }), Has("--out"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.copy_streams = 1; }),
              Has("--layouts and --copy_streams"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.bucket_mb = 1; }), Has("--bucket_mb"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.dp_shard = 2; }), Has("--layouts and --dp_shard"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.connection = "1gbit"; }), Has("--connection"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.system = "none"; }), Has("--system"));
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.fraction = .8; }), "");
  EXPECT_EQ(refusal([](RawPredictFlags& raw) { raw.sequence_parallel = true; }), "");
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.workers = "8,16"; }), Has("one number of --workers"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw = {.cluster = "dgx-h100", .memory = "80GB"}; }),
              Has("--memory needs --layouts auto"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw = {.cluster = "dgx-h100", .sequence_parallel = true}; }),
              Has("--sequence_parallel needs --layouts auto"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.workload = "resnet50"; }), Has("use one of gpt2"));
  EXPECT_THAT(refusal([](RawPredictFlags& raw) { raw.workers = "12"; }), Has("do not fill nodes of 8"));
}

TEST(LayoutAnswer, WhatFitsNowhereIsRefusedWithTheSmallest) {
  RawPredictFlags raw = OnDevices("2");
  raw.memory = "1GB";
  const absl::Status status = LayoutsText(UnderstandPredict(raw, {}).value()).status();
  EXPECT_THAT(std::string(status.message()), Has("no layout of 2 devices fits llama_8b into 1.0 GiB"));
}

}  // namespace
}  // namespace psring
