// Checks that Perfetto and chrome://tracing show all of a trace: the Trace Event Format (Chromium's
// document), and what Perfetto's importer drops: overlapping spans in one row that do not nest, and flows
// without two ends inside spans.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace psring {

class ChromeTraceCheck {
 public:
  static void Expect(const nlohmann::json& trace) {
    ASSERT_TRUE(trace.is_object() && trace.contains("traceEvents") && trace["traceEvents"].is_array());
    ChromeTraceCheck check;
    for (const nlohmann::json& event : trace["traceEvents"]) {
      check.Note(event);
      if (testing::Test::HasFailure()) return;
    }
    check.ExpectRowsNest();
    check.ExpectFlowsJoinSpans();
    for (const int64_t process : check.used_)
      EXPECT_TRUE(check.named_.contains(process)) << "pid " << process;
  }

 private:
  using Row = std::pair<int64_t, int64_t>;  // pid, tid
  struct End {
    Row row;
    double ts;
  };

  void Note(const nlohmann::json& event) {
    SCOPED_TRACE(event.dump());
    ASSERT_TRUE(event.is_object());
    ASSERT_TRUE(event.contains("ph") && event["ph"].is_string());
    ASSERT_TRUE(event.contains("name") && event["name"].is_string() && !event["name"].empty());
    ASSERT_TRUE(event.contains("pid") && event["pid"].is_number_integer());
    const std::string phase = event["ph"];
    const int64_t pid = event["pid"], tid = event.value("tid", int64_t{0});
    if (phase == "M") return NoteMetadata(event, pid);
    ASSERT_TRUE(event.contains("tid") && event["tid"].is_number_integer());
    ASSERT_TRUE(event.contains("ts") && event["ts"].is_number());
    const double ts = event["ts"];
    EXPECT_GE(ts, 0);
    used_.insert(pid);
    if (phase == "X") {
      ASSERT_TRUE(event.contains("dur") && event["dur"].is_number());
      EXPECT_GE(event["dur"].get<double>(), 0);
      spans_[{pid, tid}].emplace_back(ts, ts + event["dur"].get<double>());
    } else if (phase == "s" || phase == "f") {
      ASSERT_TRUE(event.contains("id") && event["id"].is_number_integer());
      ASSERT_TRUE(event.contains("cat") && event["cat"].is_string());
      const bool encloses = event.value("bp", "") == "e";
      EXPECT_TRUE(phase == "s" || encloses) << "without it, the flow joins the next span";
      auto& ends = phase == "s" ? starts_ : finishes_;
      EXPECT_TRUE(ends.emplace(event["id"], End{{pid, tid}, ts}).second) << "twice";
    } else {
      ASSERT_EQ(phase, "i");
      EXPECT_TRUE(event.value("s", "t") == "t" || event["s"] == "p" || event["s"] == "g");
    }
  }

  void NoteMetadata(const nlohmann::json& event, int64_t pid) {
    const std::string name = event["name"];
    ASSERT_TRUE(event.contains("args"));
    if (name == "process_name" || name == "thread_name") {
      EXPECT_TRUE(event["args"].contains("name") && event["args"]["name"].is_string());
      if (name == "process_name") named_.insert(pid);
    } else {
      EXPECT_TRUE(name == "process_sort_index" || name == "thread_sort_index");
      EXPECT_TRUE(event["args"].contains("sort_index") && event["args"]["sort_index"].is_number_integer());
    }
  }

  void ExpectRowsNest() {
    constexpr double kRounding = 0.0011;  // us: times have three digits
    for (auto& [row, spans] : spans_) {
      std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
      });
      std::vector<double> open;  // ends of the enclosing spans
      for (const auto& [begin, end] : spans) {
        while (!open.empty() && open.back() <= begin + kRounding) open.pop_back();
        const double around = open.empty() ? end : open.back();
        EXPECT_LE(end, around + kRounding) << "row " << row.first << "/" << row.second << " at " << begin;
        open.push_back(end);
      }
    }
  }

  bool InASpan(const End& end) const {
    const auto row = spans_.find(end.row);
    if (row == spans_.end()) return false;
    for (const auto& [from, to] : row->second) {
      if (end.ts >= from - 0.0011 && end.ts <= to + 0.0011) return true;
    }
    return false;
  }

  void ExpectFlowsJoinSpans() const {
    EXPECT_EQ(starts_.size(), finishes_.size());
    for (const auto& [id, start] : starts_) {
      const auto finish = finishes_.find(id);
      ASSERT_NE(finish, finishes_.end()) << "flow " << id << " has no end";
      EXPECT_LE(start.ts, finish->second.ts) << "flow " << id;
      EXPECT_TRUE(InASpan(start)) << "flow " << id;
      EXPECT_TRUE(InASpan(finish->second)) << "flow " << id;
    }
  }

  std::map<Row, std::vector<std::pair<double, double>>> spans_;
  std::map<int64_t, End> starts_, finishes_;  // by id
  std::set<int64_t> used_, named_;
};

}  // namespace psring
