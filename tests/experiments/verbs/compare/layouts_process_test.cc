// A comparison of layouts with real processes: the model copied and cut, and how its rows tell them apart.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/experiments/chrome_trace.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"

namespace psring {
namespace {

using Json = nlohmann::json;

constexpr char kTinyGpt[] =
    " --model gpt-nano --layers 2 --width 16 --heads 4 --context 8 --data text --text text --link none ";

class LayoutsCompared : public PsringInAFolder {
 protected:
  void SetUp() override {
    PsringInAFolder::SetUp();
    std::ofstream text(root_ / "work" / "text");
    for (int i = 0; i < 100; ++i) text << "one fish, two fish, red fish, blue fish " << i % 7 << "\n";
  }
};

// Standard output without line breaks.
std::string Unwrapped(const Outcome& outcome) {
  std::string text = outcome.out;
  absl::RemoveExtraAsciiWhitespace(&text);
  return text;
}

constexpr char kCompare[] =
    "compare --layouts dp2,pp2,dp2xpp2 --program 1f1b,gpipe --model mlp-small --data synthetic --batch 8 "
    "--micro_batches 4 --link none --repeats 1 --steps 6 --timeout 40 ";

TEST_F(LayoutsCompared, EachIsARowWithItsBubbleAndTheSameSamplesPerStep) {
  const std::string out = Unwrapped(Succeed(absl::StrCat(kCompare, "--out run")));
  EXPECT_THAT(out, Has("every layout computes the same 32 samples per step", "pp2 1f1b", "pp2 gpipe",
                       "dp2xpp2 1f1b", "bubble"));
  std::map<std::string, Json> rows;  // by layout and program, or strategy
  for (const Json& row : JsonFile("run/summary.json")) {
    const Json& figures = row["figures"];
    const std::string last = figures["program"].is_null() ? "strategy" : "program";
    EXPECT_EQ(row.contains("links"), last == "program");
    if (row.contains("links")) {
      const Json& links = row["links"];
      EXPECT_GT(links["stages"], 0);
      EXPECT_EQ(links["tensors"], 0);
      EXPECT_NEAR(links["replicas"].get<double>() + links["stages"].get<double>(),
                  figures["payload_tx_bytes_per_worker"].get<double>(), 1);
    }
    rows[absl::StrCat(figures["layout"].get<std::string>(), " ", figures[last].get<std::string>())] = figures;
  }
  ASSERT_EQ(rows.size(), 7u);
  for (const char* references : {"dp1 single", "dp2 none", "dp2 ring"})
    ASSERT_TRUE(rows.contains(references));
  for (const auto& [name, figures] : rows) {
    SCOPED_TRACE(name);
    EXPECT_EQ(figures["global_batch"], figures["strategy"] == "none" ? 16 : 32);  // of an update
    EXPECT_EQ(figures["parameters"], rows["dp1 single"]["parameters"]);
    EXPECT_GT(figures["samples_per_s"], 0);
    EXPECT_NE(figures["replicas_equal"], false);
    for (const char* known : {"params_mb", "grads_mb", "optimizer_mb", "activations_mb"})
      EXPECT_GT(figures[known], 0) << known;
    EXPECT_LE(figures["params_mb"], rows["dp1 single"]["params_mb"]);
    EXPECT_GT(figures["predicted_peak_memory_mb"], figures["activations_mb"]);
    const bool is_cut = !figures["program"].is_null();
    EXPECT_EQ(figures["micro_batches"], 4 / figures["workers"].get<int>() * (is_cut ? 2 : 1));
    if (!is_cut) {
      EXPECT_TRUE(figures["bubble_fraction"].is_null());
      continue;
    }
    EXPECT_GE(figures["bubble_fraction"], 0);
    EXPECT_LT(figures["bubble_fraction"], 1);
    EXPECT_GT(figures["predicted_bubble_fraction"], 0);
    EXPECT_LT(figures["predicted_bubble_fraction"], 1);
    EXPECT_GT(figures["payload_tx_bytes_per_worker"], 0);
  }
  ChromeTraceCheck::Expect(JsonFile("run/trace.json"));
  EXPECT_THAT(File("run/report.html"), Has("dp2xpp2", "bubble_fraction"));
  EXPECT_THAT(File("run/runs.csv"), Has(",pp2,gpipe,4,", ",dp2xpp2,1f1b,2,", ",dp2,,2,"));
}

TEST_F(LayoutsCompared, DividedMatricesAreARowBesideReplicas) {
  const std::string out = Unwrapped(
      Succeed(absl::StrCat("compare --layouts dp2,tp2", kTinyGpt,
                           "--batch 4 --micro_batches 4 --repeats 1 --steps 6 --timeout 40 --out run")));
  EXPECT_THAT(out, Has("every layout computes the same 16 samples per step", "tp2"));
  std::map<std::string, Json> rows;  // by layout and strategy
  for (const Json& row : JsonFile("run/summary.json")) {
    const Json& figures = row["figures"];
    rows[absl::StrCat(figures["layout"].get<std::string>(), " ", figures["strategy"].get<std::string>())] =
        figures;
  }
  ASSERT_EQ(rows.size(), 4u);
  for (const char* name : {"dp1 single", "dp2 none", "dp2 ring", "tp2 ring"})
    ASSERT_TRUE(rows.contains(name)) << name;
  const Json &copied = rows["dp2 ring"], &divided = rows["tp2 ring"];
  EXPECT_EQ(divided["global_batch"], 16);
  EXPECT_EQ(divided["micro_batches"], 4);
  EXPECT_EQ(copied["micro_batches"], 2);
  EXPECT_EQ(divided["parameters"], copied["parameters"]);
  EXPECT_NEAR(divided["loss"].get<double>(), copied["loss"].get<double>(), .1 * copied["loss"].get<double>());
  EXPECT_NE(divided["replicas_equal"], false);
  for (const char* none : {"program", "bubble_fraction", "predicted_payload_bytes_per_worker"})
    EXPECT_TRUE(divided[none].is_null()) << none;
  for (const char* part : {"params_mb", "grads_mb", "optimizer_mb"})
    EXPECT_LT(divided[part], copied[part]) << part;
  EXPECT_GT(divided["predicted_peak_memory_mb"], divided["activations_mb"]);
  EXPECT_LT(divided["predicted_peak_memory_mb"], copied["predicted_peak_memory_mb"]);
  EXPECT_GT(divided["samples_per_s"], 0);
  EXPECT_GT(divided["payload_tx_bytes_per_worker"], 0);
  EXPECT_GT(divided["exposed_comm_ms"], 0);
  EXPECT_THAT(File("run/runs.csv"), Has(",tp2,,4,", ",dp2,,2,"));
}

TEST_F(LayoutsCompared, EveryCutIsARow) {
  const std::string out =
      Unwrapped(Succeed("compare --pp 2 --workers 2 --cuts all --model mlp-small --data synthetic --batch 8 "
                        "--micro_batches 4 --link none --repeats 1 --steps 6 --timeout 40 --out run"));
  EXPECT_THAT(out, Has("2 of the 2 layers before which", "pp2 1f1b cut 1", "pp2 1f1b cut 2"));
  std::map<std::string, Json> rows;  // by cut
  for (const Json& row : JsonFile("run/summary.json")) {
    const Json& cuts = row["figures"]["cuts"];
    rows[cuts.is_null() ? "" : cuts.get<std::string>()] = row;
  }
  ASSERT_EQ(rows.size(), 3u);
  for (const char* cut : {"1", "2"}) {
    EXPECT_GT(rows[cut]["walk"]["step_ms"], 0);
    EXPECT_GT(rows[cut]["figures"]["predicted_bubble_fraction"], 0);
    EXPECT_LT(rows[cut]["figures"]["params_mb"], rows[""]["figures"]["params_mb"]);
  }
  EXPECT_LT(rows["1"]["figures"]["params_mb"], rows["2"]["figures"]["params_mb"])
      << "the first layer has the most weights";
}

TEST_F(LayoutsCompared, StalenessByServersAndByAPipelineAreRowsWithAccuracy) {
  const std::string out = Unwrapped(Succeed(
      "compare --workers 2 --pp 2 --strategies ring,ps-async --program 1f1b,pipedream --model mlp-small "
      "--data synthetic --batch 8 --micro_batches 4 --link none --repeats 1 --steps 4 --samples 320 "
      "--timeout 40 --verbose --out run"));
  EXPECT_THAT(out, Has("not compared: ps-async pp2 pipedream", "gradients without a flush was"));
  std::map<std::string, Json> rows;  // by strategy and program
  for (const Json& row : JsonFile("run/summary.json")) {
    const Json& figures = row["figures"];
    const std::string program = figures["program"].is_null() ? "" : figures["program"].get<std::string>();
    rows[absl::StrCat(figures["strategy"].get<std::string>(), " ", program)] = figures;
  }
  ASSERT_EQ(rows.size(), 4u);
  for (const char* name : {"single ", "ring 1f1b", "ring pipedream", "ps-async 1f1b"}) {
    ASSERT_TRUE(rows.contains(name)) << name;
    EXPECT_FALSE(rows[name]["test_accuracy"].is_null()) << name;
  }
  // Of four gradients of the first stage, three are one update old; the second stage has none.
  EXPECT_DOUBLE_EQ(rows["ring pipedream"]["staleness_mean"].get<double>(), .375);
  EXPECT_EQ(rows["ring pipedream"]["staleness_max"], 1);
  EXPECT_EQ(rows["ps-async 1f1b"]["staleness_max"], 0) << "one replica";
  EXPECT_TRUE(rows["ring 1f1b"]["staleness_mean"].is_null());
}

TEST_F(LayoutsCompared, ADryRunNamesTheCasesAndStartsNothing) {
  EXPECT_THAT(Unwrapped(Succeed(absl::StrCat(kCompare, "--dry_run"))),
              Has("single x 1", "ring x 2 (pp2 1f1b)", "ring x 4 (dp2xpp2 gpipe)"));
  EXPECT_THAT(
      Unwrapped(Succeed("compare --workers 2,4 --pp 2 --micro_batches 2,4 --model mlp-small --data synthetic "
                        "--link none --dry_run")),
      Has("ring x 2 (pp2 1f1b m2)", "ring x 2 (pp2 1f1b m4)", "ring x 4 (dp2xpp2 1f1b m1)",
          "ring x 4 (dp2xpp2 1f1b m2)"));
  EXPECT_THAT(
      Unwrapped(Succeed(absl::StrCat("compare --layouts auto --workers 6 --batch 2 --dry_run", kTinyGpt))),
      Has("ring x 6 (dp3xtp2)",
          "leaves out dp2xtp3, tp6, pp2xtp3, tp3xcp2: this model supports only --tp 1 or 2 or 4",
          "ring x 6 (dp3xcp2)", "--cp 3 cuts a sequence into 6 equal chunks, but --context is 8"));
  EXPECT_THAT(
      Unwrapped(Succeed("compare --layouts auto --workers 2 --model mlp-small --data synthetic --link "
                        "none --dry_run")),
      Has("ring x 2 (pp2 1f1b)", "leaves out tp2: this model supports only --tp 1",
          "leaves out cp2: --cp divides the sequences of transformers"));
}

TEST_F(LayoutsCompared, WhatDoesNotFitIsRefusedOrLeftOutBeforeItStarts) {
  const std::string wide = " --model mlp-small --width 2000 --data synthetic --batch 8 --dry_run";
  for (const char* verb : {"compare --strategies ring --workers 2 --link none",
                           "train --strategy ring --workers 2", "compare --layouts dp2,pp2 --link none"}) {
    const auto run = Run(Words(absl::StrCat(verb, wide, " --memory 1M")));
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(run.err, Has("training needs at least ", "parameters ", "gradients ", "optimizer ",
                             "activations of ", "and --memory allows 1.0 MiB"));
  }
  EXPECT_THAT(Run(Words(absl::StrCat("train --strategy ring --workers 2", wide, " --memory 64M"))).err,
              Has("layouts of 2 workers that fit", "--strategy zero1 ("));
  // Two stages of at most 4 of the 5.6 million parameters.
  EXPECT_THAT(Unwrapped(Succeed(
                  absl::StrCat("compare --layouts auto --workers 2 --link none", wide, " --memory 80M"))),
              Has("--layouts auto leaves out single x 1: ", "--layouts auto leaves out ring x 2: ",
                  "ring x 2 (pp2 1f1b)"));
}

}  // namespace
}  // namespace psring
