// Where the ranks of a mesh stand, as all of them see it, and what that means for how a buffer is cut.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/transports/mesh_connections.h"
#include "ring_worker/transports/transport.h"

namespace psring {

struct MeshLayout {
  int ranks_per_node = 1;   // see Transport
  bool some_share = false;  // memory
  bool all_share = true;
  bool all_near = true;       // no connection that carries payload leaves its host
  bool some_crowded = false;  // more ranks share memory than there are cores for them
};

// What one rank sees of the mesh.
struct MeshView {
  int sharing = 1;       // ranks with which it shares memory, itself among them
  bool in_line = true;   // they are neighbours, and could be one of several nodes of this size
  bool crowded = false;  // they are more than the cores that it may use
  bool near = true;      // none of its connections that carry payload leaves the host
  bool operator==(const MeshView&) const = default;
};

// Pure. `shares`: by rank, whether memory is shared with it; its own entry does not matter.
MeshView ViewOf(int rank, const std::vector<bool>& shares, int cores, bool near);
MeshLayout LayoutOf(std::span<const MeshView> by_rank);

// One exchange: all ranks leave with the same answer. `connections` by rank, as ConnectMesh makes them.
absl::StatusOr<MeshLayout> AgreeOnLayout(Rendezvous& rendezvous,
                                         const std::vector<PeerConnections>& connections);

// Pure, and so the same on every rank: all must cut a buffer alike.
TransportTraits TraitsOf(const MeshLayout& layout);

}  // namespace psring
