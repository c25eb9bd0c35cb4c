// The spans of one rank over time, and byte counters. Always on, since adding a span is cheap: an append to
// reserved memory under a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"

namespace psring {

// Nanoseconds, such as MonotonicNanos.
using Clock = std::function<int64_t()>;

enum class SpanKind : uint8_t {
  kForward,
  kBackward,
  kCommunication,  // a bucket in flight: from its first possible byte to its last received one
  kRound,          // of a schedule, within a bucket's communication, if psring moves the bytes itself
  kExposed,        // the compute stream waits for synchronization
  kOptimizer,
  kMessage,  // between two stages of a pipeline: its bytes
  kBubble,   // a stage waits until another one has computed
  kUnit,     // of the model, within a forward or backward pass
  kOther,
};
const char* SpanName(SpanKind kind);

struct TraceSpan {
  SpanKind kind = SpanKind::kOther;
  int64_t step = 0;
  int bucket = -1;  // -1: none
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int round = -1;           // -1: none
  std::string action = {};  // of a training-step program: "0F3", "0SEND_F3"; empty: none
};

struct Traffic {
  uint64_t payload_tx_bytes = 0;
  uint64_t payload_rx_bytes = 0;
  Traffic operator-(const Traffic& other) const {
    return {payload_tx_bytes - other.payload_tx_bytes, payload_rx_bytes - other.payload_rx_bytes};
  }
  Traffic operator+(const Traffic& other) const {
    return {payload_tx_bytes + other.payload_tx_bytes, payload_rx_bytes + other.payload_rx_bytes};
  }
};

// Thread-safe. Holds at most `capacity` spans; later ones are counted and dropped, and the writer reports the
// number.
class Trace {
 public:
  static constexpr size_t kCapacity = 1 << 16;

  explicit Trace(int rank, size_t capacity = kCapacity, Clock clock = MonotonicNanos);

  int64_t Now() const { return clock_(); }
  int rank() const { return rank_; }
  void Add(const TraceSpan& span);
  std::vector<TraceSpan> spans() const;
  int64_t dropped() const;

 private:
  const int rank_;
  const size_t capacity_;
  const Clock clock_;
  mutable Mutex mutex_;
  std::vector<TraceSpan> spans_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The length of the union of `intervals` (begin, end), all in ns.
int64_t BusyNanos(std::vector<std::pair<int64_t, int64_t>> intervals);

// Chrome trace events (an array's elements, one object per line, comma-separated): pid = rank, a row per kind
// and more rows where spans of one kind overlap. A span with an action is named after it and has its kind as
// category; the actions that compute share a row, and so do messages of one stage and direction. Perfetto
// opens it once wrapped in {"traceEvents":[...]}.
std::string ChromeTraceEvents(const Trace& trace);

}  // namespace psring
