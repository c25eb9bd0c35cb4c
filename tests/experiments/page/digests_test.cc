// What the page has of long files.
#include "experiments/page/digests.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/measure/arrivals.h"

namespace psring {
namespace {

using Json = nlohmann::json;

TEST(DigestStepsTest, KeepsTheLossOfOneRound) {
  std::string text = "no json\n";
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int rank = 0; rank < 2; ++rank)
      absl::StrAppend(&text, R"({"part":"cost","strategy":"ps-async","workers":2,"repeat":)", repeat,
                      R"(,"rank":)", rank, R"(,"samples":8,"begin_ns":1000000000,"loss":0.5})", "\n");
  }
  const Json digest = Json::parse(DigestSteps(text));
  ASSERT_EQ(digest["loss"].size(), 1u);
  EXPECT_EQ(digest["loss"][0]["points"], Json::parse("[[16.0,0.0,0.5]]"));
}

TEST(DigestStepsTest, LongCurvesAreAveragedToAFewPoints) {
  std::string text;
  for (int step = 0; step < 1001; ++step) {
    absl::StrAppend(
        &text, R"({"part":"training","strategy":"ring","workers":1,"repeat":0,"rank":0,"samples":1,"loss":)",
        step, "}\n");
  }
  const Json points = Json::parse(DigestSteps(text))["loss"][0]["points"];
  EXPECT_EQ(points.size(), 143u);
  EXPECT_EQ(points[0][2], 3.0);  // of 0 to 6
}

TEST(DigestTraceTest, ATruncatedTraceHasNoLaunches) {
  const std::string text =
      R"({"traceEvents":[{"name":"ring x 2","ph":"X","pid":1000000,"ts":0,"dur":9,"args":{}},
      {"name":"forward","ph":"X","pid":0,"ts":1,"dur":2,"args":{"step":0}}])";
  EXPECT_EQ(Json::parse(DigestTrace(absl::StrCat(text, "}")))["launches"].size(), 1u);
  EXPECT_EQ(Json::parse(DigestTrace(text))["launches"].size(), 0u);
}

TEST(DigestTraceTest, ShowsTheMedianStepOfRankZeroAndWhatOverlapsIt) {
  std::string text = "{\"traceEvents\":[";
  const int lengths[] = {50, 10, 30};  // us; the median is step 2, from 60 to 90
  int begin = 0;
  for (int step = 0; step < 3; ++step) {
    absl::StrAppend(&text, R"({"ph":"X","pid":0,"name":"forward","ts":)", begin, ",\"dur\":", lengths[step],
                    ",\"args\":{\"step\":", step, "}},");
    begin += lengths[step];
  }
  text += R"({"ph":"X","pid":1,"name":"communication","ts":50,"dur":15,"args":{"step":1,"bucket":4}},)";
  text += R"({"ph":"X","pid":1,"name":"early","ts":20,"dur":15,"args":{"step":1}},)";
  text += R"({"ph":"X","pid":1000000,"name":"ring x 2","ts":0,"dur":90}]})";
  const Json launch = Json::parse(DigestTrace(text))["launches"][0];
  EXPECT_EQ(launch["name"], "ring x 2");
  EXPECT_EQ(launch["spans"],
            Json::parse(R"([[0.0,"forward",-1.0,0.0,0.03],[1.0,"communication",4.0,-0.01,0.015]])"));
}

TEST(DigestTraceTest, KeepsTheArrowsAndRoundEndsOfTheStep) {
  // Two buckets of a ring of two; rank 1 begins each a little later and has it a little later.
  std::string text = "{\"traceEvents\":[";
  for (int rank = 0; rank < 2; ++rank) {
    for (int bucket = 0; bucket < 2; ++bucket) {
      absl::StrAppend(&text, R"({"ph":"X","pid":)", rank, R"(,"tid":3000,"name":"communication","ts":)",
                      1000 * bucket + 100 * rank, R"(,"dur":500,"args":{"step":4,"bucket":)", bucket, "}},");
      for (int round = 0; round < 2; ++round) {
        absl::StrAppend(&text, R"({"ph":"X","pid":)", rank, R"(,"tid":4000,"name":"round","ts":)",
                        1000 * bucket + 100 * rank, R"(,"dur":)", 200 * (round + 1) - 50 * rank,
                        R"(,"args":{"step":4,"bucket":)", bucket, R"(,"round":)", round, "}},");
      }
    }
  }
  text +=
      R"({"ph":"s","id":1,"pid":0,"ts":0,"args":{"step":4,"bucket":0}},{"ph":"f","id":1,"pid":1,"ts":600,"args":{"step":4,"bucket":0}},)";
  text +=
      R"({"ph":"s","id":2,"pid":1,"ts":99000},{"ph":"f","id":2,"pid":0,"ts":99900},{"ph":"s","id":3,"pid":0,"ts":1},)";
  text +=
      R"({"ph":"X","pid":1000000,"name":"ring x 2","ts":0,"dur":2000,"args":{"algorithm":"ring","workers":2,"servers":0}}]})";
  const Json launch = Json::parse(DigestTrace(text))["launches"][0];
  EXPECT_EQ(launch["algorithm"], "ring");
  EXPECT_EQ(launch["arrows"], Json::parse("[[0.0,1.0,0.0,0.0,0.6]]"));  // not of another time, not half
  // Twice from 100, when the last rank has begun, to 250, and to 450, when the last one has all.
  EXPECT_EQ(launch["rounds_ms"], Json::parse("[0.3,0.7]"));
  EXPECT_EQ(launch["spans"].size(), 4u);  // rounds are no rows of the timeline
  // Unknown if a rank or a round is missing.
  const Json gap = Json::parse(DigestTrace(absl::StrReplaceAll(text, {{"\"round\":0", "\"round\":2"}})));
  EXPECT_TRUE(gap["launches"][0]["rounds_ms"].is_null());
  const Json three =
      Json::parse(DigestTrace(absl::StrReplaceAll(text, {{"\"workers\":2", "\"workers\":3"}})));
  EXPECT_TRUE(three["launches"][0]["rounds_ms"].is_null());
}

TEST(DigestTraceTest, PrefersAStepWithArrows) {
  std::string text = "{\"traceEvents\":[";
  for (int step = 0; step < 5; ++step)
    absl::StrAppend(&text, R"({"ph":"X","pid":0,"tid":1,"name":"forward","ts":)", 100 * step,
                    ",\"dur\":", 10 + step, ",\"args\":{\"step\":", step, "}},");
  for (const char* end : {R"("s","id":1,"pid":0,"ts":400)", R"("f","id":1,"pid":1,"ts":401)"})
    absl::StrAppend(&text, R"({"ph":)", end, R"(,"args":{"step":4,"bucket":0}},)");
  text += R"({"ph":"X","pid":1000000,"name":"ring x 2","ts":0,"dur":500}]})";
  EXPECT_EQ(Json::parse(DigestTrace(text))["launches"][0]["ms"], 0.014);  // step 4, not the median of all
}

TEST(DigestArrivalsTest, ListsTheVersionOfEachGradient) {
  const auto digest = [](const std::string& rule, const std::vector<uint16_t>& order) {
    return DigestArrivals("x", ToBytes({.consistency = rule, .workers = 3, .updates = {order}}));
  };
  const Json json = Json::parse(digest("async", {0, 1, 0, 2, 1}));
  // Worker, version computed on, version created.
  EXPECT_EQ(json["pushes"], Json::parse("[[0,0,1],[1,0,2],[0,1,3],[2,0,4],[1,2,5]]"));
  EXPECT_EQ(json["updates"], 5);
  EXPECT_EQ(json["staleness_mean"], (0 + 1 + 1 + 3 + 2) / 5.0);
  EXPECT_EQ(json["staleness_max"], 3);
  // Bounded: worker 0 continues only after all have pushed step 0, and then reads the current version.
  EXPECT_EQ(Json::parse(digest("ssp:1", {0, 0, 1, 2, 0}))["pushes"],
            Json::parse("[[0,0,1],[0,1,2],[1,0,3],[2,0,4],[0,4,5]]"));
  EXPECT_EQ(digest("ssp:1", {0, 0, 0}), "");  // impossible order
  EXPECT_EQ(DigestArrivals("x", "no such record"), "");
  EXPECT_EQ(digest("async", {}), "");
}

TEST(DigestArrivalsTest, LongRunsKeepTheirBeginning) {
  const std::vector<uint16_t> order(1000, 0);
  const Json json =
      Json::parse(DigestArrivals("x", ToBytes({.consistency = "async", .workers = 2, .updates = {order}})));
  EXPECT_EQ(json["pushes"].size(), kMaxPushes);
  EXPECT_EQ(json["updates"], 1000);
}

}  // namespace
}  // namespace psring
