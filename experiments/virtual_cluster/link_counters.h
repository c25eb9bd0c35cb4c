// What the kernel counted on the links of namespaces. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// Since the node's network exists.
struct NodeCounters {
  int64_t retransmitted_segments = 0;  // TCP's, all connections of the node together
  int64_t timeouts = 0;                // of them, connections that had to wait for their time-out
  int64_t queue_drops = 0;             // packets that the switch's port towards the node had no room for
};

// The field `name` of `protocol` in the text of /proc/net/snmp or /proc/net/netstat: a line of names, then
// one of numbers. Errors name what is missing.
absl::StatusOr<int64_t> NetworkCounterOf(const std::string& text, const std::string& protocol,
                                         const std::string& name);

// Packets that the root queue of `interface` dropped, from the text of `tc -s qdisc show`.
absl::StatusOr<int64_t> QueueDropsOf(const std::string& text, const std::string& interface);

// What came in between, node by node.
std::vector<NodeCounters> Difference(const std::vector<NodeCounters>& after,
                                     const std::vector<NodeCounters>& before);

// Milliseconds that sending again takes the node that has most of it: full segments at the link's rate, and
// each time-out at the least that Linux waits (200 ms). *Derived*, and at most: a segment that is sent again
// need not hold anybody up.
double SendingAgainMs(const std::vector<NodeCounters>& nodes, double bits_per_s);

}  // namespace psring
