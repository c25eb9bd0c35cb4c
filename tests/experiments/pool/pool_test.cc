// Runs of one plan on several machines.
#include "experiments/pool/pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "common/text/translate.h"
#include "tests/has.h"

namespace psring {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

Json RowOf(const std::string& strategy, int workers, double samples_per_s) {
  return {{"figures",
           {{"schema_version", 4},
            {"strategy", strategy},
            {"workers", workers},
            {"servers", strategy == "ps-sync" ? 1 : 0},
            {"model", "mlp"},
            {"parameters", 100},
            {"batch_per_worker", 128},
            {"shaping", "netns"},
            {"link_mbps", 200.0},
            {"lr", 0.1},
            {"samples_per_s", samples_per_s},
            {"samples_per_s_lo95", 0.9 * samples_per_s},
            {"samples_per_s_hi95", 1.1 * samples_per_s},
            {"efficiency", samples_per_s / 1000},
            {"valid", true}}}};
}

// A run of single, ring and ps-sync, whose host is `host`.
Json RunOn(const std::string& host, double single, double ring, double server,
           const std::vector<std::string>& recommended = {"ring"}) {
  return {{"manifest",
           {{"run_id", "run of " + host},
            {"started_utc", "2026-11-25T10:00:00Z"},
            {"machine", {{"host", host}, {"cpu", "A processor"}, {"cores", 2}}},
            {"link", {{"mbps", 200.0}, {"latency_ms", 0.0}}},
            {"cost",
             {{"warmup_steps", 1},
              {"configurations",
               {{{"trainer_flags",
                  {"--strategy=ring", "--steps=4", "--workload=/home/" + host + "/a.csv"}}}}}}}}},
          {"table", {{"recommended", recommended}}},
          {"summary", {RowOf("single", 1, single), RowOf("ring", 2, ring), RowOf("ps-sync", 2, server)}}};
}

PoolInput InputOf(const std::string& name, const Json& run) { return {name, run.dump()}; }

// Of runs that are named a, b, c, ...
Pool PoolOf(const std::vector<Json>& runs) {
  std::vector<PoolInput> inputs;
  for (const Json& run : runs)
    inputs.push_back(InputOf(std::string(1, static_cast<char>('a' + inputs.size())), run));
  return PoolRuns(inputs);
}

// Of two runs: the reason why the second is not pooled.
std::string ReasonFor(const Json& first, const Json& second) {
  const Pool pool = PoolOf({first, second});
  EXPECT_EQ(pool.machines.size(), 1u);
  if (pool.left_out.size() != 1) return "";
  EXPECT_EQ(pool.left_out[0].name, "b");
  EXPECT_NE(pool.left_out[0].english, pool.left_out[0].chinese);
  return pool.left_out[0].english;
}

TEST(Pool, SpreadIsMedianLowestAndHighestOverMachines) {
  const Pool pool = PoolOf({RunOn("a", 100, 200, 100), RunOn("b", 200, 900, 300), RunOn("c", 50, 100, 80)});
  EXPECT_THAT(pool.left_out, IsEmpty());
  ASSERT_EQ(pool.rows.size(), 3u);
  const PoolRow& ring = pool.rows[1];
  EXPECT_EQ(ring.strategy, "ring");
  EXPECT_EQ(ring.base, "ps-sync");
  ASSERT_TRUE(ring.samples_per_s && ring.ratio && ring.efficiency);
  EXPECT_DOUBLE_EQ(ring.samples_per_s->least, 100);
  EXPECT_DOUBLE_EQ(ring.samples_per_s->median, 200);
  EXPECT_DOUBLE_EQ(ring.samples_per_s->most, 900);
  EXPECT_EQ(ring.samples_per_s->machines, 3);
  // Each machine is compared with its own ps-sync: 2, 3 and 1.25.
  EXPECT_DOUBLE_EQ(ring.ratio->least, 1.25);
  EXPECT_DOUBLE_EQ(ring.ratio->median, 2);
  EXPECT_DOUBLE_EQ(ring.ratio->most, 3);
  EXPECT_DOUBLE_EQ(ring.efficiency->median, 0.2);
  EXPECT_DOUBLE_EQ(*ring.machines[1].low, 810);
  EXPECT_DOUBLE_EQ(*ring.machines[1].high, 990);
  EXPECT_EQ(pool.machines[1].run_id, "run of b");
  EXPECT_EQ(pool.machines[1].cores, 2);
}

TEST(Pool, WithoutPsSyncTheReferenceIsSingle) {
  Json a = RunOn("a", 100, 150, 1), b = RunOn("b", 200, 500, 1);
  a["summary"].erase(2);
  b["summary"].erase(2);
  const Pool pool = PoolOf({a, b});
  ASSERT_EQ(pool.rows.size(), 2u);
  EXPECT_EQ(pool.rows[0].base, "");
  EXPECT_FALSE(pool.rows[0].ratio);
  EXPECT_EQ(pool.rows[1].base, "single");
  EXPECT_DOUBLE_EQ(pool.rows[1].ratio->least, 1.5);
  EXPECT_DOUBLE_EQ(pool.rows[1].ratio->most, 2.5);
}

TEST(SideBySide, ShowsTheSettingsThatDifferAndTheRatioToTheFirstRun) {
  Json other = RunOn("a", 100, 300, 100);
  other["summary"].erase(0);
  other["summary"].push_back(RowOf("star", 2, 50));
  for (Json& row : other["summary"]) row["figures"]["link_mbps"] = 1000.0;
  const Pool pool = PoolRuns({InputOf("slow", RunOn("a", 100, 200, 100)), InputOf("fast", other)});
  EXPECT_EQ(pool.machines.size(), 1u);
  const SideBySide& beside = pool.beside;
  EXPECT_THAT(beside.runs, ElementsAre("slow", "fast"));
  ASSERT_EQ(beside.settings.size(), 1u);
  EXPECT_EQ(beside.settings[0].name, "link_mbps");
  EXPECT_THAT(beside.settings[0].values, ElementsAre("200", "1000"));
  ASSERT_EQ(beside.rows.size(), 4u);
  EXPECT_EQ(beside.rows[1].strategy, "ring");
  EXPECT_DOUBLE_EQ(*beside.rows[1].machines[1].ratio, 1.5);
  EXPECT_DOUBLE_EQ(*beside.rows[1].machines[0].low, 180);
  EXPECT_FALSE(beside.rows[1].machines[0].ratio);
  EXPECT_FALSE(beside.rows[0].machines[1].samples_per_s) << "the second run has no single";
  EXPECT_FALSE(beside.rows[3].machines[1].ratio) << "the first run has no star";
  EXPECT_THAT(BesideTable(beside), Has("300 (270 to 330), × 1.50", "link_mbps"));
  const Json json = Json::parse(BesideJson(beside));
  EXPECT_EQ(json["settings"], Json::parse(R"([["link_mbps", "200", "1000"]])"));
  EXPECT_EQ(json["rows"][1]["runs"][1]["ratio"], 1.5);
}

TEST(SideBySide, IsOnlyOfRunsThatCannotBePooled) {
  Json other = RunOn("c", 100, 300, 100);
  for (Json& row : other["summary"]) row["figures"]["link_mbps"] = 1000.0;
  const PoolInput a = InputOf("a", RunOn("a", 100, 200, 100)), b = InputOf("b", RunOn("b", 100, 200, 100));
  EXPECT_THAT(PoolRuns({a, b, InputOf("c", other)}).beside.runs, IsEmpty());
  EXPECT_THAT(PoolRuns({a}).beside.runs, IsEmpty());
  EXPECT_THAT(PoolRuns({a, a}).beside.runs, IsEmpty()) << "the same run twice";
  EXPECT_EQ(BesideJson({}), "null");
}

TEST(Pool, RowsThatOtherProgramsDisturbedAreShownButNotCounted) {
  Json disturbed = RunOn("b", 100, 999, 100);
  disturbed["summary"][1]["figures"]["valid"] = false;
  Json reference = RunOn("c", 100, 300, 100);
  reference["summary"][2]["figures"]["valid"] = false;
  const Pool pool = PoolOf({RunOn("a", 100, 200, 100), disturbed, reference});
  const PoolRow& ring = pool.rows[1];
  EXPECT_DOUBLE_EQ(ring.samples_per_s->most, 300);
  EXPECT_EQ(ring.samples_per_s->machines, 2);
  EXPECT_FALSE(ring.machines[1].valid);
  EXPECT_DOUBLE_EQ(*ring.machines[1].samples_per_s, 999);
  EXPECT_EQ(ring.ratio->machines, 1) << "a ratio needs a valid reference, too";
  EXPECT_THAT(PoolTable(pool), Has("ring x 2: 2 of 3 machines; other programs",
                                   "ring x 2, relative to its own ps-sync: 1 of 3 machines; other"));
}

TEST(Pool, NamesTheRunAndTheDifferenceOfAnotherPlan) {
  struct Case {
    std::function<void(Json&)> change;
    std::string reason;
  };
  const auto column = [](const char* name, const Json& value) {
    return [name, value](Json& run) { run["summary"][1]["figures"][name] = value; };
  };
  const std::vector<Case> cases = {
      {column("link_mbps", 100.0), "link_mbps of ring x 2 is 100, but 200 in a"},
      {column("batch_per_worker", 64), "batch_per_worker of ring x 2 is 64, but 128 in a"},
      {column("model", "cnn"), "model of ring x 2 is cnn, but mlp in a"},
      {column("schema_version", 3), "schema_version of ring x 2 is 3, but 4 in a"},
      {column("lr", nullptr), "lr of ring x 2 is not set, but 0.1 in a"},
      {[](Json& run) { run["summary"].erase(1); }, "it has no row ring x 2, unlike a"},
      {column("workers", 4), "it has a row ring x 4, unlike a"},
      {[](Json& run) { run["manifest"]["link"]["latency_ms"] = 1; }, "link.latency_ms is 1, but 0 in a"},
      {[](Json& run) {
         run["manifest"]["cost"]["configurations"][0]["trainer_flags"].push_back("--optimizer=adam");
       },
       "trainer_flags is --strategy=ring --workload=a.csv --optimizer=adam, but --strategy=ring "
       "--workload=a.csv in a"}};
  for (const Case& difference : cases) {
    Json other = RunOn("b", 100, 200, 100);
    difference.change(other);
    EXPECT_EQ(ReasonFor(RunOn("a", 100, 200, 100), other), difference.reason);
  }
}

TEST(Pool, StepsAndFoldersMayDiffer) {
  Json other = RunOn("b", 100, 200, 100);
  other["manifest"]["cost"]["configurations"][0]["trainer_flags"][1] = "--steps=40";
  EXPECT_EQ(PoolOf({RunOn("a", 1, 2, 3), other}).machines.size(), 2u);
}

TEST(Pool, CountsTheSameRunOnce) {
  EXPECT_EQ(ReasonFor(RunOn("a", 1, 2, 3), RunOn("a", 1, 2, 3)), "it is the same run as a");
  // A simulation has the same figures on every machine.
  EXPECT_EQ(PoolOf({RunOn("a", 1, 2, 3), RunOn("b", 1, 2, 3)}).machines.size(), 2u);
}

TEST(Pool, LeavesOutWhatIsNotARun) {
  for (const std::string text :
       {"", "{}", "[]", "7", R"({"summary":{}})", R"({"summary":[7,{"figures":[]}]})",
        R"({"summary":[{"figures":{"strategy":{},"workers":2}}]})",
        R"({"summary":[{"figures":{"strategy":"ring","workers":1e300}}]})"}) {
    const Pool pool = PoolRuns({{"x", text}, {"a", RunOn("a", 1, 2, 3).dump()}});
    ASSERT_EQ(pool.left_out.size(), 1u) << text;
    EXPECT_EQ(pool.left_out[0].english, "it has no rows of a comparison or training");
    EXPECT_EQ(pool.machines.size(), 1u);
  }
}

TEST(Pool, FiguresThatAreNotPositiveNumbersAreMissing) {
  Json odd = RunOn("b", 100, 200, 100);
  odd["summary"][1]["figures"]["samples_per_s"] = "fast";
  odd["summary"][2]["figures"]["samples_per_s"] = -1;
  odd["manifest"]["machine"]["cpu"] = std::string(500, 'x') + "\x1b[2J";
  const Pool pool = PoolOf({RunOn("a", 100, 200, 100), odd});
  EXPECT_FALSE(pool.rows[1].machines[1].samples_per_s);
  EXPECT_FALSE(pool.rows[1].machines[1].ratio);
  EXPECT_LE(pool.machines[1].processor.size(), 60u);
}

TEST(Pool, CountsTheRecommendations) {
  Json unknown = RunOn("e", 1, 2, 3);
  unknown["table"] = nullptr;
  const Pool pool = PoolOf({RunOn("a", 1, 2, 1), RunOn("b", 1, 2, 1, {"ps-sync"}), RunOn("c", 1, 2, 1),
                            RunOn("d", 1, 2, 1, {}), unknown});
  EXPECT_THAT(WinnerSentences(pool),
              ElementsAre("ring: recommended on 2 of 5 machines.", "ps-sync: recommended on 1 of 5 machines.",
                          "No strategy is shown to be faster on 1 of 5 machines.",
                          "1 of 5 machines used a version that did not record its recommendation."));
  EXPECT_EQ(InLanguage(Language::kChinese, [&] { return WinnerSentences(pool); }).size(), 4u);
}

TEST(Pool, TableAndJsonHaveTheSpread) {
  const Pool pool = PoolOf({RunOn("a", 100, 2000, 1000), RunOn("b", 200, 900, 300), Json()});
  const std::string table = PoolTable(pool);
  EXPECT_THAT(table, Has("2 machines ran the same plan"));
  EXPECT_THAT(table, testing::ContainsRegex(R"(ring +2  1,450 \(900 to 2,000\) +1\.45 \(0\.90 to 2\.00\) +)"
                                            R"(2\.50 \(2\.00 to 3\.00\) × ps-sync)"));
  EXPECT_THAT(table, Lacks("disturbed"));
  const Json json = Json::parse(PoolJson(pool));
  EXPECT_EQ(json["rows"][1]["ratio"]["median"], 2.5);
  EXPECT_EQ(json["rows"][1]["machines"][1]["samples_per_s"], 900);
  EXPECT_EQ(json["machines"][0]["recommended"][0], "ring");
  EXPECT_EQ(json["left_out"][0]["name"], "c");
  EXPECT_EQ(json["left_out"][0]["why"].size(), 2u);
  EXPECT_EQ(json["winners"][0][0], "ring: recommended on 2 of 2 machines.");
  EXPECT_EQ(PoolJson(Pool()), "null");
}

TEST(Pool, NamesAStrategyInWhichOneWorkerMakesMostOfTheSamples) {
  Json run = RunOn("a", 100, 2000, 1000);
  run["summary"].push_back(RowOf("ps-async", 2, 3000));
  run["summary"].back()["figures"]["most_samples_share"] = 0.9;
  const Pool pool = PoolOf({run});
  EXPECT_THAT(PoolTable(pool), Has("ps-async, one worker 90%  "));
  EXPECT_EQ(Json::parse(PoolJson(pool))["rows"][3]["most_samples_share"], 0.9);
}

}  // namespace
}  // namespace psring
