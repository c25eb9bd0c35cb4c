#include "common/measure/trace.h"

#include <gtest/gtest.h>

#include <map>

#include "nlohmann/json.hpp"
#include "tests/on_ranks.h"

namespace psring {
namespace {

using Json = nlohmann::json;

Json Events(const Trace& trace) {
  return Json::parse("{\"traceEvents\":[" + ChromeTraceEvents(trace) + "]}")["traceEvents"];
}

TEST(Trace, KeepsSpansAndUsesTheGivenClock) {
  int64_t now = 5;
  Trace trace(3, 16, [&now] { return now++; });
  EXPECT_EQ(trace.rank(), 3);
  EXPECT_EQ(trace.Now(), 5);
  EXPECT_EQ(trace.Now(), 6);
  trace.Add({.kind = SpanKind::kForward, .step = 7, .begin_ns = 1, .end_ns = 2});
  ASSERT_EQ(trace.spans().size(), 1);
  EXPECT_EQ(trace.spans()[0].step, 7);
}

TEST(Trace, CountsDroppedSpans) {
  Trace trace(0, 2);
  for (int i = 0; i < 5; ++i) trace.Add({.begin_ns = i, .end_ns = i + 1});
  EXPECT_EQ(trace.spans().size(), 2);
  EXPECT_EQ(trace.dropped(), 3);
  EXPECT_NE(ChromeTraceEvents(trace).find("trace full: 3 later spans were dropped"), std::string::npos);
  EXPECT_EQ(Events(trace).size(), 2 + 2 + 2 + 1);  // process, row, spans, note
}

TEST(Trace, IsThreadSafe) {
  Trace trace(0, 10000);
  OnRanks(4, [&](int) {
    for (int i = 0; i < 1000; ++i) trace.Add({.begin_ns = trace.Now()});
  });
  EXPECT_EQ(trace.spans().size(), 4000);
}

TEST(BusyNanos, IsTheLengthOfTheUnion) {
  EXPECT_EQ(BusyNanos({}), 0);
  EXPECT_EQ(BusyNanos({{5, 5}}), 0);
  EXPECT_EQ(BusyNanos({{0, 10}, {20, 30}}), 20);
  EXPECT_EQ(BusyNanos({{20, 30}, {0, 10}}), 20) << "in any order";
  EXPECT_EQ(BusyNanos({{0, 10}, {5, 15}}), 15);
  EXPECT_EQ(BusyNanos({{0, 10}, {10, 15}}), 15);
  EXPECT_EQ(BusyNanos({{0, 100}, {10, 20}, {30, 40}}), 100);
  EXPECT_EQ(BusyNanos({{0, 10}, {0, 10}}), 10);
  EXPECT_EQ(BusyNanos({{9, 3}, {0, 5}}), 5) << "a span that ends before it begins lasts no time";
}

TEST(ChromeTrace, ActionsHaveARowForEachLane) {
  Trace trace(0);
  const auto add = [&](SpanKind kind, int64_t begin_ns, const char* action) {
    trace.Add({.kind = kind, .begin_ns = begin_ns, .end_ns = begin_ns + 10, .action = action});
  };
  add(SpanKind::kForward, 0, "0F0");
  add(SpanKind::kMessage, 5, "0SEND_F0");
  add(SpanKind::kMessage, 5, "0RECV_B0");
  add(SpanKind::kBackward, 15, "0B0");
  add(SpanKind::kMessage, 25, "0SEND_F1");
  add(SpanKind::kBubble, 25, "");
  std::map<int, std::string> row_names;
  std::map<std::string, std::string> rows, categories;
  const Json events = Events(trace);
  for (const Json& event : events) {
    if (event["name"] == "thread_name") row_names[event["tid"]] = event["args"]["name"];
  }
  for (const Json& event : events) {
    if (event["ph"] != "X") continue;
    rows[event["name"]] = row_names[event["tid"]];
    categories[event["name"]] = event.value("cat", "");
  }
  EXPECT_EQ(rows, (std::map<std::string, std::string>{{"0F0", "compute"},
                                                      {"0B0", "compute"},
                                                      {"0SEND_F0", "0SEND_F"},
                                                      {"0SEND_F1", "0SEND_F"},
                                                      {"0RECV_B0", "0RECV_B"},
                                                      {"bubble", "bubble"}}));
  EXPECT_EQ(row_names.size(), 4);
  EXPECT_EQ(categories["0B0"], "backward");
  EXPECT_EQ(categories["0SEND_F1"], "message");
  EXPECT_EQ(categories["bubble"], "");
}

TEST(ChromeTrace, ASpanHasItsRankKindTimesAndBucket) {
  Trace trace(2);
  trace.Add(
      {.kind = SpanKind::kCommunication, .step = 4, .bucket = 1, .begin_ns = 1234567, .end_ns = 1300000});
  trace.Add({.kind = SpanKind::kForward, .step = 4, .begin_ns = 1000, .end_ns = 2000});
  std::map<int, std::string> row_names;
  std::map<std::string, Json> spans;
  for (const Json& event : Events(trace)) {
    EXPECT_EQ(event["pid"], 2);
    if (event["name"] == "thread_name") row_names[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X") spans[event["name"]] = event;
  }
  ASSERT_EQ(spans.size(), 2);
  const Json& span = spans["communication"];
  EXPECT_DOUBLE_EQ(span["ts"], 1234.567);
  EXPECT_DOUBLE_EQ(span["dur"], 65.433);
  EXPECT_EQ(span["args"]["step"], 4);
  EXPECT_EQ(span["args"]["bucket"], 1);
  EXPECT_EQ(row_names[span["tid"]], "communication");
  EXPECT_EQ(row_names[spans["forward"]["tid"]], "forward");
  EXPECT_FALSE(spans["forward"]["args"].contains("bucket"));
}

TEST(ChromeTrace, ARoundOfAScheduleHasItsNumber) {
  Trace trace(0);
  trace.Add({.kind = SpanKind::kRound, .step = 4, .bucket = 1, .begin_ns = 1000, .end_ns = 3000, .round = 0});
  const Json span = Events(trace).back();
  EXPECT_EQ(span["name"], "round");
  EXPECT_EQ(span["args"], Json::parse(R"({"step":4,"bucket":1,"round":0})"));
}

TEST(ChromeTrace, SpansOfOneRowNeverOverlap) {
  Trace trace(0);
  // Three buckets: the first two overlap, the third begins when the first has ended.
  trace.Add({.kind = SpanKind::kCommunication, .bucket = 0, .begin_ns = 0, .end_ns = 10000});
  trace.Add({.kind = SpanKind::kCommunication, .bucket = 1, .begin_ns = 5000, .end_ns = 20000});
  trace.Add({.kind = SpanKind::kCommunication, .bucket = 2, .begin_ns = 10000, .end_ns = 15000});
  std::map<int, int> row_of_bucket;
  for (const Json& event : Events(trace)) {
    if (event["ph"] == "X") row_of_bucket[event["args"]["bucket"]] = event["tid"];
  }
  EXPECT_NE(row_of_bucket[0], row_of_bucket[1]);
  EXPECT_EQ(row_of_bucket[0], row_of_bucket[2]);
}

TEST(ChromeTrace, WithoutSpansIsValid) {
  EXPECT_EQ(Events(Trace(0)).size(), 2);  // the process's name and place
}

}  // namespace
}  // namespace psring
