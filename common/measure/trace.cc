#include "common/measure/trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psring {
namespace {

// Viewers require the spans of one row to nest, but buckets of one kind may overlap in any way: each span
// goes to the first row of its kind that is free when it begins. Actions have rows by lane.
struct PlacedSpan {
  TraceSpan span;
  SpanKind kind = SpanKind::kOther;  // of the row
  int lane = 0;
};

// "0SEND_F" of "0SEND_F3".
std::string WithoutNumber(const std::string& action) {
  return action.substr(0, action.find_last_not_of("0123456789") + 1);
}

std::string NameOf(const TraceSpan& span) { return span.action.empty() ? SpanName(span.kind) : span.action; }

std::vector<PlacedSpan> Place(std::vector<TraceSpan> spans) {
  std::ranges::stable_sort(spans, {}, &TraceSpan::begin_ns);
  std::map<SpanKind, std::vector<int64_t>> lane_ends;
  std::map<std::string, int> message_lanes;
  std::vector<PlacedSpan> placed;
  placed.reserve(spans.size());
  for (const TraceSpan& span : spans) {
    if (span.kind == SpanKind::kMessage) {
      const int next = static_cast<int>(message_lanes.size());
      const auto lane = message_lanes.try_emplace(WithoutNumber(span.action), next).first;
      placed.push_back({span, span.kind, lane->second});
      continue;
    }
    const bool computes = span.kind == SpanKind::kBackward && !span.action.empty();
    const SpanKind kind = computes ? SpanKind::kForward : span.kind;
    std::vector<int64_t>& ends = lane_ends[kind];
    size_t lane = 0;
    while (lane < ends.size() && ends[lane] > span.begin_ns) ++lane;
    if (lane == ends.size()) ends.push_back(0);
    ends[lane] = std::max(span.begin_ns, span.end_ns);
    placed.push_back({span, kind, static_cast<int>(lane)});
  }
  return placed;
}

constexpr int kRowsPerKind = 1000;  // more rows would be unreadable

int RowId(SpanKind kind, int lane) {
  return (static_cast<int>(kind) + 1) * kRowsPerKind + std::min(lane, kRowsPerKind - 1);
}

}  // namespace

const char* SpanName(SpanKind kind) {
  constexpr const char* kNames[] = {"forward",   "backward", "communication", "round", "exposed",
                                    "optimizer", "message",  "bubble",        "unit",  "other"};
  return kNames[static_cast<size_t>(kind)];
}

Trace::Trace(int rank, size_t capacity, Clock clock)
    : rank_(rank), capacity_(capacity), clock_(std::move(clock)) {
  // Also touches the memory, so that a long run's does not grow.
  spans_.resize(capacity);
  spans_.clear();
}

void Trace::Add(const TraceSpan& span) {
  MutexLock lock(mutex_);
  if (spans_.size() < capacity_) {
    spans_.push_back(span);
  } else {
    ++dropped_;
  }
}

std::vector<TraceSpan> Trace::spans() const {
  MutexLock lock(mutex_);
  return spans_;
}

int64_t Trace::dropped() const {
  MutexLock lock(mutex_);
  return dropped_;
}

int64_t BusyNanos(std::vector<std::pair<int64_t, int64_t>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  int64_t busy = 0;
  int64_t covered_until = INT64_MIN;
  for (const auto& [begin, end] : intervals) {
    const int64_t from = std::max(begin, covered_until);
    if (end > from) {
      busy += end - from;
      covered_until = end;
    }
  }
  return busy;
}

std::string ChromeTraceEvents(const Trace& trace) {
  const int rank = trace.rank();
  std::string text;
  const auto describe = [&](int row, const char* what, const std::string& arguments) {
    absl::StrAppendFormat(&text, R"(%s{"ph":"M","pid":%d,"tid":%d,"name":"%s","args":{%s}})",
                          text.empty() ? "" : ",\n", rank, row, what, arguments);
  };
  describe(0, "process_name", absl::StrFormat(R"("name":"rank %d")", rank));
  describe(0, "process_sort_index", absl::StrFormat(R"("sort_index":%d)", rank));

  const std::vector<PlacedSpan> placed = Place(trace.spans());
  std::map<std::pair<SpanKind, int>, std::string> rows;
  for (const PlacedSpan& p : placed) {
    const std::string number = p.lane == 0 ? "" : absl::StrFormat(" %d", p.lane + 1);
    const bool computes = p.kind == SpanKind::kForward && !p.span.action.empty();
    rows[{p.kind, p.lane}] = p.kind == SpanKind::kMessage
                                 ? WithoutNumber(p.span.action)
                                 : absl::StrCat(computes ? "compute" : SpanName(p.kind), number);
  }
  for (const auto& [row, name] : rows) {
    const auto [kind, lane] = row;
    describe(RowId(kind, lane), "thread_name", absl::StrFormat(R"("name":"%s")", name));
    describe(RowId(kind, lane), "thread_sort_index",
             absl::StrFormat(R"("sort_index":%d)", RowId(kind, lane)));
  }

  for (const auto& [span, kind, lane] : placed) {
    const int64_t length_ns = std::max<int64_t>(0, span.end_ns - span.begin_ns);
    absl::StrAppendFormat(
        &text,
        ",\n"
        R"({"ph":"X","pid":%d,"tid":%d,"name":"%s","ts":%d.%03d,"dur":%d.%03d,"args":{"step":%d)",
        rank, RowId(kind, lane), NameOf(span), span.begin_ns / 1000, span.begin_ns % 1000, length_ns / 1000,
        length_ns % 1000, span.step);
    if (span.bucket >= 0) absl::StrAppendFormat(&text, R"(,"bucket":%d)", span.bucket);
    if (span.round >= 0) absl::StrAppendFormat(&text, R"(,"round":%d)", span.round);
    text += span.action.empty() ? "}}" : absl::StrCat("},\"cat\":\"", SpanName(span.kind), "\"}");
  }

  if (const int64_t dropped = trace.dropped(); dropped > 0) {
    // At the end of the known data, so that the reader sees where the trace ends.
    const int64_t at_ns = placed.empty() ? 0 : placed.back().span.end_ns;
    absl::StrAppendFormat(
        &text,
        ",\n"
        R"({"ph":"i","s":"p","pid":%d,"tid":0,"name":"trace full: %d later spans were dropped","ts":%d})",
        rank, dropped, at_ns / 1000);
  }
  return text;
}

}  // namespace psring
