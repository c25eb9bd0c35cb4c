// LiveRun with a fake clock.
#include "experiments/processes/live_run.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace psring {
namespace {

using Json = nlohmann::json;

class LiveRunTest : public testing::Test {
 protected:
  Json Read() { return Json::parse(run_.Json()); }
  void Step(int rank, int64_t step, int64_t samples, int64_t tx_bytes, double loss) {
    run_.Note({.event = "step",
               .rank = rank,
               .step = step,
               .steps = 100,
               .loss = loss,
               .samples = samples,
               .tx_bytes = tx_bytes});
  }

  int64_t now_ns_ = 1'000'000'000;
  LiveRun run_{"r1", "runs/r1/report.html", 100e6, /*counts_tokens=*/true, [this] { return now_ns_; }};
};

TEST_F(LiveRunTest, HasOnlyTheRunBeforeTheFirstLaunch) {
  now_ns_ += 2'500'000'000;
  const Json json = Read();
  EXPECT_EQ(json["run_id"], "r1");
  EXPECT_EQ(json["unit"], "tokens");
  EXPECT_EQ(json["elapsed_s"], 2.5);
  EXPECT_EQ(json["launch"], "");
  EXPECT_FALSE(json.contains("samples_per_s"));
}

TEST_F(LiveRunTest, RatesAreOverTheLastSecondsAndAllRanks) {
  run_.Begin("ring x 2", 2);
  for (int tenth = 0; tenth <= 50; ++tenth) {
    // Twice as fast at the end.
    const int64_t done = tenth <= 20 ? tenth : 20 + 2 * (tenth - 20);
    Step(0, done, 10 * done, 100'000 * done, 2);
    Step(1, done, 10 * done, 100'000 * done, 1);
    now_ns_ += 100'000'000;
  }
  const Json json = Read();
  EXPECT_NEAR(json["samples_per_s"].get<double>(), 400, 20);
  EXPECT_NEAR(json["mbit_per_s"].get<double>(), 16, 1);
  EXPECT_NEAR(json["link_pct"].get<double>(), 16, 1);
  EXPECT_EQ(json["loss"], 1.5);
  EXPECT_EQ(json["steps"], 80);
  EXPECT_EQ(json["steps_planned"], 100);
  EXPECT_GE(json["points"].size(), 4u);
}

TEST_F(LiveRunTest, ProgressIsTheSlowestRanks) {
  run_.Begin("ring x 3", 3);
  Step(0, 9, 9, 0, 1);
  run_.Note({.event = "ready", .rank = 1});
  Json json = Read();
  EXPECT_EQ(json["steps"], 0);
  EXPECT_EQ(json["ranks"][1]["doing"], "ready");
  EXPECT_EQ(json["ranks"][2]["doing"], "starting");
  EXPECT_TRUE(json["ranks"][2]["loss"].is_null());
  EXPECT_TRUE(json["samples_per_s"].is_null());
  // An evaluation does not change the counts.
  run_.Note({.event = "evaluate", .rank = 0});
  json = Read();
  EXPECT_EQ(json["ranks"][0]["doing"], "evaluate");
  EXPECT_EQ(json["ranks"][0]["step"], 9);
}

TEST_F(LiveRunTest, ListsFinishedLaunchesWithTheirOutcome) {
  run_.Begin("a", 1);
  now_ns_ += 3'000'000'000;
  run_.End("ok");
  run_.End("twice is once");
  run_.Begin("b", 1);
  run_.End("rank 0 died");
  const Json json = Read();
  ASSERT_EQ(json["done"].size(), 2u);
  EXPECT_EQ(json["done"][0]["launch"], "a");
  EXPECT_EQ(json["done"][0]["seconds"], 3.0);
  EXPECT_EQ(json["done"][1]["outcome"], "rank 0 died");
  EXPECT_EQ(json["launch"], "");
}

TEST_F(LiveRunTest, LimitsThePointsOfALongLaunch) {
  run_.Begin("long", 1);
  for (int i = 0; i < 20000; ++i) {
    Step(0, i, i, 0, 1);
    now_ns_ += 250'000'000;
  }
  const Json json = Read();
  EXPECT_LT(json["points"].size(), LiveRun::kMostPoints);
  EXPECT_GT(json["points"].size(), LiveRun::kMostPoints / 4);
  EXPECT_GT(json["points"].back()[0].get<double>(), 4000);
}

TEST_F(LiveRunTest, IgnoresInvalidRanksAndLosses) {
  run_.Note({.event = "step", .rank = 5});
  run_.Begin("a", 1);
  run_.Note({.event = "step", .rank = -1});
  Step(0, 1, 1, 0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(Read()["loss"].is_null());
}

}  // namespace
}  // namespace psring
