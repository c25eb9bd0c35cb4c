// How gRPC's threads wait for sockets, and until when.
#pragma once

#include <grpc/support/time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "absl/time/time.h"
#include "common/base/deadline.h"

namespace psring {

// Makes every thread that waits on a completion queue poll the sockets of that queue itself
// (GRPC_POLL_STRATEGY=poll, unless the environment sets it). By default one thread polls for all and passes
// on the results, which costs a thread switch for a few microseconds of work. Call it before anything in this
// process uses gRPC and before many threads exist.
inline void ChooseGrpcPolling() {
  [[maybe_unused]] static const int chosen = setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
}

// gRPC's timers use the same clock.
inline gpr_timespec GrpcDeadline(MonotonicTime deadline) {
  if (deadline == MonotonicTime::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_from_nanos(std::max<int64_t>(absl::ToInt64Nanoseconds(deadline.since_start()), 0),
                             GPR_CLOCK_MONOTONIC);
}

}  // namespace psring
