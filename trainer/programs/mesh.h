// Which rank of a job is which part of which replica (--pp, --rank_order). Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// A rank's coordinates.
struct MeshPlace {
  int replica = 0;   // along the data-parallel axis
  int position = 0;  // along the pipeline

  bool operator==(const MeshPlace&) const = default;
};

// "dp4", "pp2", "dp4xpp2".
std::string LayoutName(int replicas, int positions);

// The ranks of a job as replicas() x positions().
class Mesh {
 public:
  // `pp`: ranks of a replica. `rank_order`: the axes dp and pp, the one whose neighbours have consecutive
  // ranks first; empty: "dp,pp", so that position 0 of all replicas comes first. InvalidArgument: `pp` does
  // not divide `workers` (names those that do), or no such order.
  static absl::StatusOr<Mesh> Create(int workers, int pp, const std::string& rank_order);

  int workers() const { return replicas_ * positions_; }
  int replicas() const { return replicas_; }
  int positions() const { return positions_; }
  MeshPlace PlaceOf(int rank) const;
  int RankAt(const MeshPlace& place) const;

 private:
  Mesh(int replicas, int positions, bool pp_first)
      : replicas_(replicas), positions_(positions), pp_first_(pp_first) {}

  int replicas_, positions_;
  bool pp_first_;
};

// What --preset dp4xpp2 sets: 4 replicas of 2 ranks; rank r holds part r % 2, as with --pp 2 --rank_order
// pp,dp.
struct MeshPreset {
  int replicas, positions;
};
// InvalidArgument: not of the form dpDxppP, or more than 65,536 ranks.
absl::StatusOr<MeshPreset> ParseMeshPreset(const std::string& text);

}  // namespace psring
