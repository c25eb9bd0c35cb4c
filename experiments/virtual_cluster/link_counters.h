// The kernel's counters of the links of namespaces. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// Counts since the node's network was created.
struct NodeCounters {
  int64_t retransmitted_segments = 0;  // TCP, all connections of the node
  int64_t timeouts = 0;                // TCP retransmission time-outs
  int64_t queue_drops = 0;             // packets dropped by the switch's port to the node
};

// The field `name` of `protocol` in the text of /proc/net/snmp or /proc/net/netstat: a line of names, then
// one of numbers. NotFound names the missing field.
absl::StatusOr<int64_t> NetworkCounterOf(const std::string& text, const std::string& protocol,
                                         const std::string& name);

// Packets that the root queue of `interface` dropped, from the text of `tc -s qdisc show`.
absl::StatusOr<int64_t> QueueDropsOf(const std::string& text, const std::string& interface);

// `after` minus `before`, node by node.
std::vector<NodeCounters> Difference(const std::vector<NodeCounters>& after,
                                     const std::vector<NodeCounters>& before);

// Milliseconds that retransmissions take on the node where they take longest: full segments at the link's
// rate, and Linux's minimum of 200 ms per time-out. *Derived*, an upper bound: not every retransmission
// delays a step.
double RetransmissionMs(const std::vector<NodeCounters>& nodes, double bits_per_s);

}  // namespace psring
