// Connects every rank with every other, and lets nobody else in.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/net/tcp_socket.h"
#include "common/net/unix_socket.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// What leads to one peer. Control is apart from data so that bad news overtakes payload: see mesh.cc.
struct PeerConnections {
  FileDescriptor control;
  // Either: where memory can be shared, a Unix socket, over which descriptors are handed.
  UnixSocket unix_socket;
  // Or: TCP connections for payload.
  std::vector<FileDescriptor> data;
};

// By rank; this rank's own entry is empty. Waits as long as the rendezvous does; the error names the ranks
// that did not connect. FailedPrecondition: `transport` is shm and a rank stands on another host.
absl::StatusOr<std::vector<PeerConnections>> ConnectMesh(Rendezvous& rendezvous, const MeshOptions& options);

}  // namespace psring
