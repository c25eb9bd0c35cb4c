// A run's trace.json from those of its ranks: one Chrome trace, pid = rank, that opens in Perfetto. Pure.
//
// Nobody notes when a message leaves or comes: a rank's span of a bucket runs from its first byte that may
// move to its last that has arrived. So what is added here, from the schedule and those spans, is *derived*:
//   arrows   flow events from who sends to who receives, a pair and bucket one; from the sender's first
//            moment to the receiver's last. Of psring's own schedules and servers: other people's
//            collectives choose their paths themselves, and the hierarchical one's depend on hosts, which
//            records do not name.
//   servers  a row of their own, with each worker's exchange of a bucket as that worker saw it.
// Of long launches evenly spaced steps have them: about 20,000 arrows a launch.
#pragma once

#include <string>
#include <vector>

namespace psring {

// No rank has these numbers: a row that names the launches, and the servers'.
inline constexpr int kLaunchesRow = 1000000;
inline constexpr int kServersRow = 1000001;

// Of one launch: what it was, and the texts of its ranks' trace files.
struct LaunchTrace {
  std::string name;  // "ring x 4"
  std::string strategy;
  int workers = 1;
  int servers = 0;
  // What the process group says of itself; empty where there is none. Of servers the algorithm is their rule.
  std::string backend, algorithm;
  std::vector<std::string> ranks;
};

// Launches follow each other on the machine's clock.
std::string TraceJson(const std::vector<LaunchTrace>& launches);

}  // namespace psring
