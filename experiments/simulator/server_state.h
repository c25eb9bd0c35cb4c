// The state of a server simulation between two events.
#pragma once

#include <cstdint>
#include <deque>
#include <tuple>
#include <vector>

#include "experiments/simulator/server_layout.h"

namespace psring {

// What can happen next to a bucket of a group, or to the group (bucket 0).
enum class What { kReady, kComputed, kAnnounced, kAdmitted, kArrived, kNormKnown, kServed, kAnswered };

struct Event {
  double time;
  What what;
  int group, bucket;
  bool operator>(const Event& other) const {
    return std::tie(time, what, group, bucket) > std::tie(other.time, other.what, other.group, other.bucket);
  }
};

// One direction between a group and the servers: one bucket at a time.
struct Lane {
  int kind = 0;
  bool busy = false;
  std::deque<int> waiting;  // buckets
};

// Workers that act alike, and their current step.
struct WorkerGroup : GroupLayout {
  Lane push, pull;
  int64_t step = 0, next_step = 0;
  bool dropped = false;           // this step's gradient
  int pushed = 0, answered = 0;   // buckets of this step
  std::vector<int> answers_held;  // serial: buckets to pull once all are pushed
  bool computed = false;
  double began = 0, computed_at = 0, computing = 0;
  double waited = 0;               // bounded staleness
  std::vector<double> own_served;  // by bucket: when its push was an update
  double busy_since = 0, busy = 0;
  int64_t finished = 0;
  int under_way = 0;                 // buckets
  std::vector<double> read_version;  // by bucket: updates that its weights hold
};

}  // namespace psring
