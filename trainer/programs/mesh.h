// Which rank of a job is which part of which replica (--pp, --tp, --rank_order). Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// A rank's coordinates.
struct MeshPlace {
  int replica = 0;   // along the data-parallel axis
  int position = 0;  // along the pipeline
  int share = 0;     // among the ranks that divide the matrices of its stages

  bool operator==(const MeshPlace&) const = default;
};

// "dp4", "pp2", "dp4xpp2", "dp4xpp2xtp2".
std::string LayoutName(int replicas, int positions, int shares = 1);

// The ranks of a job as replicas() x positions() x shares().
class Mesh {
 public:
  // A replica has `pp` times `tp` ranks. `rank_order`: the axes dp, pp and tp, the one whose neighbours have
  // consecutive ranks first; pp and tp may be missing if they are 1. Empty: "tp,dp,pp", so that those that
  // exchange most are neighbours, and position 0 of all replicas comes first. InvalidArgument: the ranks of a
  // replica do not divide `workers` (names numbers that do), or no such order.
  static absl::StatusOr<Mesh> Create(int workers, int pp, const std::string& rank_order, int tp = 1);

  int workers() const { return replicas_.size * positions_.size * shares_.size; }
  int replicas() const { return replicas_.size; }
  int positions() const { return positions_.size; }
  int shares() const { return shares_.size; }
  MeshPlace PlaceOf(int rank) const;
  int RankAt(const MeshPlace& place) const;

 private:
  struct Axis {
    int size = 1;
    int stride = 1;  // between the ranks of neighbours
  };
  Mesh() = default;

  Axis replicas_, positions_, shares_;
};

// What --preset dp4xpp2 sets: 4 replicas of 2 ranks; rank r holds part r % 2, as with --pp 2 --rank_order
// pp,dp.
struct MeshPreset {
  int replicas, positions;
};
// InvalidArgument: not of the form dpDxppP, or more than 65,536 ranks.
absl::StatusOr<MeshPreset> ParseMeshPreset(const std::string& text);

}  // namespace psring
