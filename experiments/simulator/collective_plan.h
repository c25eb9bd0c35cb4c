// A schedule as the simulation sees it: per class of ranks, which messages each round sends and receives, and
// over which connections. Pure.
//
// *class*: ranks that do the same at the same time; see collective.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/simulator/cluster.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

// Ranks are in one class if their schedule's classes, their place within the node and the classes of their
// node's ranks are the same.
struct RankClasses {
  std::vector<size_t> of;  // by rank
  std::vector<int> first;  // by class: its lowest rank, which represents it
  std::vector<int> size;   // by class: number of ranks, and of their nodes (one rank each)
};

// Messages of equal length in one round, between a rank of this class and ranks of class `peer`.
struct MessageGroup {
  size_t peer;
  bool same_node;
  int chunks;      // of each message
  int first_peer;  // the lowest of these ranks
  int messages = 0;
  size_t pair = 0;        // index of (from, to, same_node)
  size_t connection = 0;  // of a send
  bool adds = false;      // of a receive
};

struct RoundMessages {
  int round;
  std::vector<MessageGroup> sends, receives;
};

// One rank's messages to the same peers, sent in order.
struct PlannedConnection {
  size_t from, to;  // classes
  bool same_node;
  int messages;  // sent at a time: one equal message to each of the peers
};

struct CollectivePlan {
  RankClasses classes;
  std::vector<std::vector<RoundMessages>> rounds;  // by class: rounds with transfers
  std::vector<std::vector<int>> after;             // by class: LoweredSchedule::after
  std::vector<PlannedConnection> connections;
  int64_t slabs = 1;  // pieces that a chunk is cut into
};

// Uses fewer than `wanted_slabs` if needed to limit the work. ResourceExhausted: the schedule is too large.
absl::StatusOr<CollectivePlan> PlanCollective(const Schedule& schedule, const Shape& shape,
                                              int64_t wanted_slabs);

}  // namespace psring
