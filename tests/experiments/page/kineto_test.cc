#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "experiments/page/page.h"
#include "experiments/run_folder/run_trace.h"

namespace psring {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::Key;

constexpr char kRank[] = R"({"traceEvents":[
  {"ph":"X","pid":%,"tid":1000,"name":"forward","ts":100,"dur":10,"args":{"step":3}},
  {"ph":"X","pid":%,"tid":1000,"name":"0B3","cat":"backward","ts":110,"dur":20,"args":{"step":3}},
  {"ph":"X","pid":%,"tid":3001,"name":"communication","ts":120,"dur":15,"args":{"step":3,"bucket":1}},
  {"ph":"X","pid":%,"tid":4000,"name":"exposed","ts":130,"dur":5,"args":{"step":3}}]})";

std::string OfRank(int rank) { return absl::StrReplaceAll(kRank, {{"%", absl::StrCat(rank)}}); }

TEST(Kineto, UsesTheNamesThatHolisticTraceAnalysisRecognises) {
  const std::string trace =
      TraceJson({{.name = "ring x 2", .strategy = "ring", .workers = 2, .ranks = {OfRank(0), OfRank(1)}}});
  const auto files = KinetoTraces(trace);
  ASSERT_THAT(files, ElementsAre(Key("ring-x-2/rank-0.json"), Key("ring-x-2/rank-1.json")));
  EXPECT_THAT(files.at("ring-x-2/rank-1.json"), testing::HasSubstr(R"("distributedInfo": {"rank": 1, )"));
  const Json second = Json::parse(files.at("ring-x-2/rank-1.json"));
  EXPECT_EQ(second["distributedInfo"], (Json{{"rank", 1}, {"world_size", 2}}));
  std::vector<std::string> names;
  for (const Json& event : second["traceEvents"]) names.push_back(event["name"]);
  EXPECT_THAT(names, ElementsAre("forward", "backward", "ncclKernel_psring"));
  const Json& exchange = second["traceEvents"][2];
  EXPECT_EQ(exchange["cat"], "kernel");
  EXPECT_EQ(exchange["args"]["bucket"], 1);
  EXPECT_NE(exchange["args"]["stream"], second["traceEvents"][1]["args"]["stream"]);
  EXPECT_EQ(exchange["ts"].get<double>() - second["traceEvents"][1]["ts"].get<double>(), 10);
}

TEST(Kineto, ReturnsNothingForOtherFiles) {
  for (const char* text : {"", "[]", "{}", R"({"traceEvents":3})", R"({"traceEvents":[1,{"ph":2}]})"})
    EXPECT_TRUE(KinetoTraces(text).empty()) << text;
}

TEST(Kineto, UsesNoNumberThatAnIntegerCannotHold) {
  const auto files_of = [](const char* rank, const char* lane, const char* step) {
    return KinetoTraces(absl::StrCat(R"({"traceEvents":[
      {"ph":"X","pid":1000000,"name":"ring","ts":0,"dur":100},
      {"ph":"X","name":"communication","ts":1,"dur":1,"pid":)",
                                     rank, R"(,"tid":)", lane, R"(,"args":{"step":)", step, "}}]}"));
  };
  EXPECT_EQ(files_of("0", "1", "1").size(), 1u);
  for (const char* rank : {"1e300", "-1e300", "1e999", "NaN"}) {
    EXPECT_TRUE(files_of(rank, "1", "1").empty()) << rank;
  }
  for (const char* large : {"1e300", "-1e300"}) {
    const auto files = files_of("0", large, large);
    ASSERT_THAT(files, ElementsAre(Key("ring/rank-0.json")));
    const Json args = Json::parse(files.at("ring/rank-0.json"))["traceEvents"][0]["args"];
    EXPECT_EQ(args["step"], -1);
    EXPECT_THAT(args["stream"].get<int>(), testing::AllOf(testing::Ge(20), testing::Lt(1020)));
  }
}

TEST(Kineto, ALaunchNameCannotLeaveTheFolder) {
  const auto files = KinetoTraces(TraceJson({{.name = "../../etc/x", .ranks = {OfRank(0)}}}));
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files.begin()->first.find(".."), 1u) << files.begin()->first;
  EXPECT_EQ(std::count(files.begin()->first.begin(), files.begin()->first.end(), '/'), 1);
}

}  // namespace
}  // namespace psring
