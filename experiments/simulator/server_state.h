// The state of a server simulation: its events, and what each group of workers is doing. Times in seconds.
#pragma once

#include <cstdint>
#include <deque>
#include <tuple>
#include <vector>

#include "experiments/simulator/server_layout.h"

namespace psring {

// An event of a bucket of a group, or of the whole group (bucket 0).
enum class ServerEventKind {
  kReady,
  kComputed,
  kAnnounced,
  kAdmitted,
  kArrived,
  kNormKnown,
  kServed,
  kAnswered
};

struct ServerEvent {
  double time;
  ServerEventKind kind;
  size_t group, bucket;
  bool operator>(const ServerEvent& other) const {
    return std::tie(time, kind, group, bucket) > std::tie(other.time, other.kind, other.group, other.bucket);
  }
};

// One direction between a group and the servers: one bucket at a time.
struct ServerLane {
  size_t kind = 0;
  bool busy = false;
  std::deque<size_t> waiting;  // buckets
};

// A worker's weights of one bucket, if each push is an update by itself.
struct Reading {
  double version = 0;  // updates in them
  bool held = true;    // not yet followed by a push of their gradient
  double pushed = 0;   // when that push was an update
};

// Workers that act alike, and their current step.
struct WorkerGroup : GroupLayout {
  ServerLane push, pull;
  int64_t step = 0, next_step = 0;
  bool dropped = false;              // this step's gradient
  size_t arrived = 0, answered = 0;  // buckets of this step: pushes at the servers, weights at the worker
  std::vector<size_t> answers_held;  // serial: buckets to pull when the step allows it
  bool computed = false;
  double began = 0, computed_at = 0, computing = 0;
  double waited = 0;  // bounded staleness
  double busy_since = 0, busy = 0;
  double usable_at = 0;  // when the last arrived weights are usable
  int64_t finished = 0;
  int under_way = 0;              // buckets pushed but not yet answered
  std::vector<Reading> readings;  // by bucket
};

}  // namespace psring
