// Where the ranks of a mesh stand, as all of them see it, and what that means for how a buffer is cut.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/rendezvous.h"
#include "ring_worker/transport.h"
#include "ring_worker/transports/mesh_connections.h"

namespace psring {

struct MeshLayout {
  int ranks_per_node = 1;   // see Transport
  bool some_share = false;  // memory
  bool all_share = true;
  bool all_near = true;  // no connection that carries payload leaves its host
};

// One exchange: all ranks leave with the same answer. `connections` by rank, as ConnectMesh makes them.
absl::StatusOr<MeshLayout> AgreeOnLayout(Rendezvous& rendezvous,
                                         const std::vector<PeerConnections>& connections);

// The same on every rank, wherever it stands: they must cut a buffer alike.
TransportTraits TraitsOf(const MeshLayout& layout);

}  // namespace psring
