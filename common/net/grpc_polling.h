// How gRPC's threads wait for sockets.
#pragma once

namespace psring {

// Before anything in this process uses gRPC, and before it has many threads: has every thread that waits on a
// completion queue poll the sockets of that queue itself (GRPC_POLL_STRATEGY=poll, unless the environment
// says otherwise). By default one thread polls for all and hands each what came for it, which costs a switch
// between threads for a few microseconds of work.
void ChooseGrpcPolling();

}  // namespace psring
