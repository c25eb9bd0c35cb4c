// Combines the ranks' traces of a run into trace.json: one Chrome trace, pid = rank, that opens in Perfetto.
// Pure.
//
// Messages are not recorded individually: a rank's span of a bucket runs from its first sendable byte to its
// last received one. The following is therefore *derived* from the schedule and these spans:
//   arrows   one flow event per bucket and pair of ranks, from the start of the sender's span to the end of
//            the receiver's. Only for psring's servers and schedules. With `hybrid`, a schedule for the
//            buckets and servers for the rows, which count as a further bucket.
//   servers  a separate row with each worker's exchanges as that worker recorded them.
// A long launch has about 20,000 arrows, in evenly spaced steps.
//
// Launches do not overlap: one that would, because its virtual clock starts at 0, is moved after the previous
// one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/io/untrusted_json.h"

namespace psring {

// The pids of the rows for launches and for servers, above any rank.
inline constexpr int kLaunchesRow = 1000000;
inline constexpr int kServersRow = 1000001;

// One launch and the contents of its ranks' trace files.
struct LaunchTrace {
  std::string name;  // "ring x 4"
  std::string strategy;
  int workers = 1;
  int servers = 0;
  int64_t group_buckets = 0;       // the first buckets, if a process group exchanges them beside the servers
  double time_scale = 1;           // the ranks' times are divided by it
  std::string backend, algorithm;  // as the process group or server reports them; empty: none
  int copy_streams = 2;            // of a pipeline
  int tied_every = 0;              // likewise: see TiedEvery
  std::vector<std::string> ranks;
};

// Takes the events of an untrusted Chrome trace, {"traceEvents": [...]}; see TakeElements.
bool TakeTraceEvents(const std::string& text, const std::function<void(UntrustedJson& event)>& take);

// The kind of a span (SpanName), which may be named after its action.
std::string KindOf(const UntrustedJson& event);

std::string TraceJson(const std::vector<LaunchTrace>& launches);

}  // namespace psring
