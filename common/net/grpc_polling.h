// How gRPC's threads wait for sockets.
#pragma once

namespace psring {

// Makes every thread that waits on a completion queue poll the sockets of that queue itself
// (GRPC_POLL_STRATEGY=poll, unless the environment sets it). By default one thread polls for all and passes
// on the results, which costs a thread switch for a few microseconds of work. Call it before anything in this
// process uses gRPC and before many threads exist.
void ChooseGrpcPolling();

}  // namespace psring
