// Connects every rank with every other, and lets nobody else in.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/rendezvous.h"
#include "ring_worker/process_group.h"
#include "ring_worker/transport.h"
#include "ring_worker/transports/socket.h"

namespace psring {

// What leads to one peer. Control is apart from data so that bad news overtakes payload: see tcp.cc.
struct PeerSockets {
  FileDescriptor data;
  FileDescriptor control;
};

// By rank; this rank's own entry is empty. Waits as long as the rendezvous does; the error names the ranks
// that did not connect.
absl::StatusOr<std::vector<PeerSockets>> ConnectMesh(Rendezvous& rendezvous, const GroupOptions& options);

}  // namespace psring
