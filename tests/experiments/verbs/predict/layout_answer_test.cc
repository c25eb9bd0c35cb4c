#include "experiments/verbs/predict/layout_answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
                  "fit into 80.0 GiB per device", "Verdict (simulated): ", " is fastest: "));
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

TEST(LayoutAnswer, ItNamesWhatTheTrainerDoesNotCombine) {
  LayoutQuestion question{.model = {.heads = 8}, .workers = 8};
  std::vector<FoundLayout> best(4);
  best[0].candidate = {.dp = 8, .strategy = &ShardingStrategy("fsdp")};
  best[1].candidate = {.dp = 4, .pp = 2, .strategy = &ShardingStrategy("zero2")};
  best[1].candidate.program = FindStepProgram("1f1b").value();
  best[2].candidate = {.dp = 4, .tp = 2};
  best[3].candidate = {.dp = 4, .tp = 2, .strategy = &ShardingStrategy("fsdp")};
  EXPECT_EQ(
      WhatIsNotTrained(question, best),
      " psring train cannot run dp4xpp2 zero2 (the first: --pp and --strategy zero2 exclude each other; omit "
      "one of them).");
  question.model.sixteen_bits = true;
  EXPECT_THAT(WhatIsNotTrained(question, best), Has("zero2, dp4xtp2 fsdp ("));
  question.model.tokens = 31;
  question.model.sequence_parallel = true;
  EXPECT_THAT(WhatIsNotTrained(question, best), Has("zero2, dp4xtp2, dp4xtp2 fsdp ("));
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
