// Connects every rank with every other. Rejects connections without the job's secret.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/net/tcp_socket.h"
#include "common/net/unix_socket.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// The connections to one peer. Control is separate from data so that errors do not wait for payload (see
// mesh_transport.h).
struct PeerConnections {
  FileDescriptor control;
  // Either a Unix socket, which passes descriptors, if memory can be shared,
  UnixSocket unix_socket;
  // or TCP connections for payload.
  std::vector<FileDescriptor> data;
};

// By rank; this rank's own entry is empty. Waits as long as the rendezvous does; the error names the ranks
// that did not connect. FailedPrecondition: `transport` is shm and a rank is on another host.
absl::StatusOr<std::vector<PeerConnections>> ConnectMesh(Rendezvous& rendezvous, const MeshOptions& options);

}  // namespace psring
