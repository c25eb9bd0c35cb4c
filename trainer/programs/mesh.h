// Which rank of a job is which part of which replica (--pp, --tp, --rank_order). Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// A rank's coordinates.
struct MeshPlace {
  int replica = 0;   // along the data-parallel axis
  int position = 0;  // in the replica: along the pipeline, or among the ranks that divide its matrices

  bool operator==(const MeshPlace&) const = default;
};

// "dp4", "pp2", "dp4xpp2"; with another `axis` of positions "dp4xtp2".
std::string LayoutName(int replicas, int positions, const char* axis = "pp");

// The ranks of a job as replicas() x positions().
class Mesh {
 public:
  // `pp` or `tp`, of which one is 1: ranks of a replica. `rank_order`: the axes dp and pp, or dp and tp, the
  // one whose neighbours have consecutive ranks first; empty: "dp,pp", so that position 0 of all replicas
  // comes first, or "tp,dp", so that those that exchange most are neighbours. InvalidArgument: `pp` or `tp`
  // does not divide `workers` (names those that do), or no such order.
  static absl::StatusOr<Mesh> Create(int workers, int pp, const std::string& rank_order, int tp = 1);

  int workers() const { return replicas_ * positions_; }
  int replicas() const { return replicas_; }
  int positions() const { return positions_; }
  MeshPlace PlaceOf(int rank) const;
  int RankAt(const MeshPlace& place) const;

 private:
  Mesh(int replicas, int positions, bool replica_first)
      : replicas_(replicas), positions_(positions), replica_first_(replica_first) {}

  int replicas_, positions_;
  bool replica_first_;  // the ranks of a replica are consecutive
};

// What --preset dp4xpp2 sets: 4 replicas of 2 ranks; rank r holds part r % 2, as with --pp 2 --rank_order
// pp,dp.
struct MeshPreset {
  int replicas, positions;
};
// InvalidArgument: not of the form dpDxppP, or more than 65,536 ranks.
absl::StatusOr<MeshPreset> ParseMeshPreset(const std::string& text);

}  // namespace psring
