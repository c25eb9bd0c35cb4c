// Which rank of a job is which part of which replica (--pp, --rank_order, --preset, --layouts). Pure.
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

  bool operator==(const MeshPlace&) const = default;
};

// How the workers of a step divide it.
struct Layout {
  int dp = 1;  // replicas of the model
  int pp = 1;  // ranks of a replica; 1: the model is not cut

  int workers() const { return dp * pp; }
  std::string name() const;  // "dp2", "pp4", "dp2xpp4"
  bool operator==(const Layout&) const = default;
};

// What name() returns, or "pp4xdp2". InvalidArgument: another form, or not 2 to `most` workers.
absl::StatusOr<Layout> ParseLayout(absl::string_view text, int most);

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
  std::vector<int> RanksAt(int position) const;  // by replica

 private:
  Mesh(int replicas, int positions, bool pp_first)
      : replicas_(replicas), positions_(positions), pp_first_(pp_first) {}

  int replicas_, positions_;
  bool pp_first_;
};

}  // namespace psring
