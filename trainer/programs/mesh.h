// Which rank of a job is which part of which replica (--pp, --tp, --cp, --rank_order, --preset, --layouts).
// Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psring {

// A rank's coordinates.
struct MeshPlace {
  int replica = 0;   // along the data-parallel axis
  int position = 0;  // along the pipeline
  int share = 0;     // among the ranks that divide the matrices of its stages
  int segment = 0;   // among those that divide its sequences

  bool operator==(const MeshPlace&) const = default;
};

// How the workers of a step divide it.
struct Layout {
  int dp = 1;  // replicas of the model
  int pp = 1;  // stages of a replica; 1: the model is not cut
  int tp = 1;  // ranks that divide the matrices of each
  int cp = 1;  // ranks that divide its sequences

  int workers() const { return dp * replica_ranks(); }
  int replica_ranks() const { return pp * tp * cp; }
  std::string name() const;  // "dp2", "pp4", "dp2xpp4", "dp2xtp2", "dp2xcp2"
  bool operator==(const Layout&) const = default;
};

// What name() returns, in any order ("pp4xdp2"). InvalidArgument: another form, or not 2 to `most` workers.
absl::StatusOr<Layout> ParseLayout(absl::string_view text, int most);

// The ranks of a job as replicas() x positions() x shares() x segments().
class Mesh {
 public:
  // A replica has `pp` times `tp` times `cp` ranks. `rank_order`: the axes dp, pp, tp and cp, the one whose
  // neighbours have consecutive ranks first; those of one rank, except dp, may be missing. Empty:
  // "tp,cp,dp,pp", so that those that exchange most are neighbours, and position 0 of all replicas comes
  // first. InvalidArgument: the ranks of a replica do not divide `workers` (names numbers that do), or no
  // such order.
  static absl::StatusOr<Mesh> Create(int workers, int pp, const std::string& rank_order, int tp = 1,
                                     int cp = 1);

  int workers() const { return replicas_.size * positions_.size * shares_.size * segments_.size; }
  int replicas() const { return replicas_.size; }
  int positions() const { return positions_.size; }
  int shares() const { return shares_.size; }
  int segments() const { return segments_.size; }
  MeshPlace PlaceOf(int rank) const;
  int RankAt(const MeshPlace& place) const;
  // By replica, of segment 0. Parts of the model: of position 0 each share, then of position 1.
  std::vector<int> RanksWithPart(int part) const;

 private:
  struct Axis {
    int size = 1;
    int stride = 1;  // between the ranks of neighbours
  };
  Mesh() = default;

  Axis replicas_, positions_, shares_, segments_;
};

}  // namespace psring
