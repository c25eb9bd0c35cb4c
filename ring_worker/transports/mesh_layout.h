// The placement of a mesh's ranks, on which all agree, and the segment size that follows from it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/transports/transport.h"

namespace psring {

struct MeshLayout {
  int ranks_per_node = 1;   // see TransportInfo
  bool some_share = false;  // some ranks share memory
  bool all_share = true;
  bool all_near = true;              // no connection that carries payload leaves its host
  bool some_oversubscribed = false;  // a host has more ranks than cores for them
};

// The mesh from one rank's point of view.
struct MeshView {
  int sharing = 1;              // ranks with which it shares memory, including itself
  bool in_line = true;          // their ranks are consecutive, and fit into nodes of this size
  bool oversubscribed = false;  // they (if `near`: all ranks) are more than the cores of this process
  bool near = true;             // none of its connections that carry payload leaves the host
  bool operator==(const MeshView&) const = default;
};

// Pure. `shares`: by rank, whether memory is shared with it; its own entry does not matter.
MeshView ViewOf(int rank, const std::vector<bool>& shares, int cores, bool near);
MeshLayout LayoutOf(std::span<const MeshView> by_rank);

// Collective: all ranks get the same result. Parameters as for ViewOf.
absl::StatusOr<MeshLayout> AgreeOnLayout(Rendezvous& rendezvous, const std::vector<bool>& shares, bool near);

// Pure: all ranks must use the same segments.
TransportTraits TraitsOf(const MeshLayout& layout);

}  // namespace psring
