// How gRPC's threads wait for sockets.
#pragma once

#include <cstdlib>

namespace psring {

// Makes every thread that waits on a completion queue poll the sockets of that queue itself
// (GRPC_POLL_STRATEGY=poll, unless the environment sets it). By default one thread polls for all and passes
// on the results, which costs a thread switch for a few microseconds of work. Call it before anything in this
// process uses gRPC and before many threads exist.
inline void ChooseGrpcPolling() {
  [[maybe_unused]] static const int chosen = setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
}

}  // namespace psring
