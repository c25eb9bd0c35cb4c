// Arrows and rows of a run's trace, from hand-written spans.
#include "experiments/run_folder/run_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tests/experiments/chrome_trace.h"

namespace psring {
namespace {

using Json = nlohmann::json;

// A rank that exchanges bucket `bucket` of step 0 from `begin` to `end` (us).
std::string RankTrace(int rank, double begin, double end, int bucket = 0) {
  return absl::StrFormat(
      R"({"traceEvents":[{"ph":"X","pid":%d,"tid":3000,"name":"communication","ts":%f,"dur":%f,"args":{"step":0,"bucket":%d}}]})",
      rank, begin, end - begin, bucket);
}

// Adds the rows' names, which hand-written traces do not have.
std::string NamedRank(int rank) {
  return absl::StrFormat(
      R"({"traceEvents":[{"ph":"M","pid":%d,"tid":0,"name":"process_name","args":{"name":"rank %d"}}]})",
      rank, rank);
}

Json EventsOf(const LaunchTrace& launch) {
  LaunchTrace named = launch;
  for (int rank = 0; rank < launch.workers; ++rank) named.ranks.push_back(NamedRank(rank));
  ChromeTraceCheck::Expect(Json::parse(TraceJson({named})));
  return Json::parse(TraceJson({launch}))["traceEvents"];
}

struct Arrow {
  std::string name;
  int64_t from = -1, to = -1;
  double leaves = 0, arrives = 0;
};
std::map<int64_t, Arrow> ArrowsOf(const Json& events) {
  std::map<int64_t, Arrow> arrows;
  for (const Json& event : events) {
    if (event["ph"] != "s" && event["ph"] != "f") continue;
    EXPECT_EQ(event["cat"], "derived");
    Arrow& arrow = arrows[event["id"]];
    arrow.name = event["name"];
    (event["ph"] == "s" ? arrow.from : arrow.to) = event["pid"];
    (event["ph"] == "s" ? arrow.leaves : arrow.arrives) = event["ts"];
  }
  return arrows;
}

LaunchTrace CollectiveLaunch(const std::string& algorithm, int workers) {
  LaunchTrace launch = {.name = algorithm, .workers = workers, .backend = "native", .algorithm = algorithm};
  for (int rank = 0; rank < workers; ++rank) launch.ranks.push_back(RankTrace(rank, 10 + rank, 100 + rank));
  return launch;
}

TEST(RunTrace, CombinesLaunchesWithARowOfTheirNames) {
  const std::string one = R"({"traceEvents":[{"name":"forward","ph":"X","pid":0,"tid":1,"ts":10,"dur":5}]})";
  const std::string two = R"({"traceEvents":[{"name":"forward","ph":"X","pid":1,"tid":1,"ts":12,"dur":8}]})";
  const Json events = EventsOf({.name = "ring x 2", .workers = 2, .ranks = {one, two}});
  bool named = false;
  int forwards = 0;
  for (const auto& event : events) {
    forwards += event["name"] == "forward";
    if (event["name"] == "ring x 2") {
      named = true;
      EXPECT_EQ(event["ts"], 10);
      EXPECT_EQ(event["dur"], 10);
      EXPECT_EQ(event["args"]["workers"], 2);
    }
  }
  EXPECT_EQ(forwards, 2);
  EXPECT_TRUE(named);
}

TEST(RunTrace, InARingEveryRankSendsToItsNeighbour) {
  const std::map<int64_t, Arrow> arrows = ArrowsOf(EventsOf(CollectiveLaunch("ring", 3)));
  ASSERT_EQ(arrows.size(), 3u);
  for (const auto& [id, arrow] : arrows) {
    EXPECT_EQ(arrow.to, (arrow.from + 1) % 3);
    EXPECT_EQ(arrow.leaves, 10 + arrow.from);
    EXPECT_NEAR(arrow.arrives, 100 + arrow.to, 0.002);  // inside the receiver's span
    EXPECT_LT(arrow.arrives, 100 + arrow.to);
  }
}

TEST(RunTrace, ArrowsAreThoseOfTheSchedule) {
  const auto pairs = [](const std::string& algorithm, int workers) {
    std::set<std::pair<int64_t, int64_t>> found;
    for (const auto& [id, arrow] : ArrowsOf(EventsOf(CollectiveLaunch(algorithm, workers))))
      found.emplace(arrow.from, arrow.to);
    return found;
  };
  EXPECT_EQ(pairs("star", 3), (std::set<std::pair<int64_t, int64_t>>{{0, 1}, {0, 2}, {1, 0}, {2, 0}}));
  EXPECT_EQ(pairs("direct", 3).size(), 6u);
  EXPECT_EQ(pairs("halving-doubling", 4).size(), 8u);
  // Both ways within two machines, and a ring of two between those with the same place.
  EXPECT_EQ(pairs("hierarchical:2", 4), (std::set<std::pair<int64_t, int64_t>>{
                                            {0, 1}, {1, 0}, {2, 3}, {3, 2}, {0, 2}, {2, 0}, {1, 3}, {3, 1}}));
}

TEST(RunTrace, ServersHaveARowForPushesAndPulls) {
  LaunchTrace launch = {.name = "ps-async x 2", .workers = 2, .servers = 1, .backend = "native"};
  launch.algorithm = "async";
  launch.ranks = {RankTrace(0, 10, 50), RankTrace(1, 30, 90, 7)};
  const Json events = EventsOf(launch);
  std::set<std::string> seen;
  for (const auto& [id, arrow] : ArrowsOf(events)) {
    const bool push = arrow.name == "push";
    EXPECT_EQ(push ? arrow.to : arrow.from, kServersRow);
    const int64_t worker = push ? arrow.from : arrow.to;
    EXPECT_NEAR(arrow.leaves, push ? (worker == 0 ? 10 : 30) : (worker == 0 ? 50 : 90), 0.002);
    seen.insert(absl::StrFormat("%s %d", arrow.name, worker));
  }
  EXPECT_EQ(seen, (std::set<std::string>{"push 0", "pull 0", "push 1", "pull 1"}));
  int exchanges = 0;
  for (const Json& event : events) {
    if (event["name"] != "exchange") continue;
    ++exchanges;
    EXPECT_EQ(event["pid"], kServersRow);
    EXPECT_EQ(event["args"]["bucket"], event["args"]["worker"] == 1 ? 7 : 0);
  }
  EXPECT_EQ(exchanges, 2);
}

TEST(RunTrace, HybridHasArrowsOfItsRingAndOfTheServersRows) {
  LaunchTrace launch = {.name = "hybrid x 2", .workers = 2, .servers = 1, .group_buckets = 1};
  launch.backend = "native";
  launch.algorithm = "ring";
  for (int rank = 0; rank < 2; ++rank) {
    launch.ranks.push_back(RankTrace(rank, 40, 60));
    launch.ranks.push_back(RankTrace(rank, 10, 30, /*bucket=*/1));  // the rows
  }
  std::set<std::string> seen;
  for (const auto& [id, arrow] : ArrowsOf(EventsOf(launch)))
    seen.insert(absl::StrFormat("%s %d %d", arrow.name, arrow.from, arrow.to));
  EXPECT_EQ(seen, (std::set<std::string>{"send 0 1", "send 1 0", absl::StrFormat("push 0 %d", kServersRow),
                                         absl::StrFormat("push 1 %d", kServersRow),
                                         absl::StrFormat("pull %d 0", kServersRow),
                                         absl::StrFormat("pull %d 1", kServersRow)}));
  for (const Json& event : EventsOf(launch)) {
    if (event["name"] == "exchange") {
      EXPECT_EQ(event["args"]["bucket"], 1);
    }
  }
}

TEST(RunTrace, OverlappingExchangesGetLanes) {
  LaunchTrace launch = {.name = "ps-sync x 1", .workers = 1, .servers = 1, .backend = "native"};
  launch.ranks = {RankTrace(0, 10, 50), absl::StrReplaceAll(RankTrace(0, 30, 90, 1), {{"3000", "3001"}}),
                  RankTrace(0, 60, 70, 2)};
  std::map<int64_t, int64_t> lanes;  // by bucket
  for (const Json& event : EventsOf(launch)) {
    if (event["name"] == "exchange") lanes[event["args"]["bucket"]] = event["tid"];
  }
  EXPECT_NE(lanes[0], lanes[1]);
  EXPECT_EQ(lanes[0], lanes[2]);
}

TEST(RunTrace, LongLaunchesHaveArrowsInEvenlySpacedSteps) {
  LaunchTrace launch = {.name = "ring x 2", .workers = 2, .backend = "native", .algorithm = "ring"};
  for (int rank = 0; rank < 2; ++rank) {
    std::string events;
    for (int step = 0; step < 10001; ++step)
      absl::StrAppendFormat(
          &events,
          R"(%s{"ph":"X","pid":%d,"tid":3000,"name":"communication","ts":%d,"dur":5,"args":{"step":%d,"bucket":0}})",
          step > 0 ? "," : "", rank, 10 * step, step);
    launch.ranks.push_back(absl::StrCat("{\"traceEvents\":[", events, "]}"));
  }
  std::set<int64_t> steps;
  for (const Json& event : EventsOf(launch)) {
    if (event["ph"] == "s") steps.insert(event["args"]["step"].get<int64_t>());
  }
  EXPECT_EQ(steps.size(), 5001u);  // 20,002 arrows would be too many: every second step
  EXPECT_TRUE(steps.contains(10000));
}

TEST(RunTrace, DrawsNoArrowsForUnknownPaths) {
  LaunchTrace launch = CollectiveLaunch("ring", 3);
  launch.backend = "nccl";
  EXPECT_TRUE(ArrowsOf(EventsOf(launch)).empty());
  EXPECT_TRUE(ArrowsOf(EventsOf(CollectiveLaunch("hierarchical", 2))).empty());
  EXPECT_TRUE(ArrowsOf(EventsOf(CollectiveLaunch("no such", 2))).empty());
  launch = CollectiveLaunch("ring", 3);
  launch.ranks.erase(launch.ranks.begin() + 1);  // a lost worker
  EXPECT_EQ(ArrowsOf(EventsOf(launch)).size(), 1u);
  EXPECT_EQ(Json::parse(TraceJson({}))["traceEvents"].size(), 2u);
}

TEST(RunTrace, OmitsInvalidEvents) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  std::string sound = RankTrace(0, 10, 20);
  for (const std::string& event : {std::string("5"), std::string("null"), std::string(R"("text")"), deep}) {
    LaunchTrace launch = {.name = "ring", .workers = 2};
    launch.ranks = {sound, absl::StrFormat("{\"traceEvents\":[%s]}", event), event};
    EXPECT_EQ(EventsOf(launch).size(), EventsOf({.name = "ring", .workers = 2, .ranks = {sound}}).size())
        << event;
  }
}

TEST(RunTrace, DrawsNoArrowsFromFieldsOfOtherTypes) {
  for (const char* wrong : {R"("text")", "{}", "[]", "null", "-1", "1e300", "2.5", "18446744073709551615"}) {
    for (const char* key : {"\"ph\":\"X\"", "\"pid\":1", "\"tid\":3000", "\"name\":\"communication\"",
                            "\"step\":0", "\"bucket\":0"}) {
      const std::string field = key;
      LaunchTrace launch = {.name = "ring", .workers = 2, .backend = "native", .algorithm = "ring"};
      std::string changed = RankTrace(1, 10, 20);
      const size_t at = changed.find(field);
      ASSERT_NE(at, std::string::npos);
      changed.replace(at, field.size(), absl::StrCat(field.substr(0, field.find(':') + 1), wrong));
      launch.ranks = {RankTrace(0, 10, 20), changed};
      const Json events = Json::parse(TraceJson({launch}))["traceEvents"];
      EXPECT_EQ(
          std::count_if(events.begin(), events.end(), [](const Json& event) { return event["ph"] == "s"; }),
          0)
          << changed;
    }
  }
}

TEST(TraceJson, LaunchesOfVirtualClocksDoNotOverlap) {
  const LaunchTrace first{.name = "single x 1", .workers = 1, .ranks = {RankTrace(0, 0, 25)}};
  const LaunchTrace second{
      .name = "ring x 2", .workers = 2, .ranks = {RankTrace(0, 0, 25), RankTrace(1, 5, 25)}};
  const LaunchTrace later{.name = "later x 1", .workers = 1, .ranks = {RankTrace(0, 90000, 90010)}};
  std::map<std::string, std::pair<double, double>> launches;
  std::vector<double> begins;
  const Json events = Json::parse(TraceJson({first, second, later}))["traceEvents"];
  for (const Json& event : events) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    if (event["pid"] == kLaunchesRow) launches[event["name"]] = {begin, end};
    if (event["pid"] != kLaunchesRow) begins.push_back(begin);
  }
  EXPECT_GT(launches["ring x 2"].first, launches["single x 1"].second);
  EXPECT_EQ(launches["ring x 2"].second - launches["ring x 2"].first, 25);
  EXPECT_EQ(begins[2] - begins[1], 5) << "within a launch, times keep their distance";
  EXPECT_EQ(launches["later x 1"].first, 90000) << "not moved: it does not overlap";
}

}  // namespace
}  // namespace psring
