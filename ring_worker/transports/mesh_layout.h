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
  bool all_near = true;       // no connection that carries payload leaves its host
  bool some_crowded = false;  // more ranks share memory than there are cores for them
};

// One exchange: all ranks leave with the same answer. `connections` by rank, as ConnectMesh makes them.
absl::StatusOr<MeshLayout> AgreeOnLayout(Rendezvous& rendezvous,
                                         const std::vector<PeerConnections>& connections);

// Pure, and so the same on every rank: all must cut a buffer alike.
TransportTraits TraitsOf(const MeshLayout& layout);

}  // namespace psring
