// Builds a virtual cluster with links that this host can carry.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/launch/interrupt.h"
#include "experiments/virtual_cluster/link.h"
#include "experiments/virtual_cluster/virtual_cluster.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

struct CarriedCluster {
  std::shared_ptr<const VirtualCluster> cluster;  // measured
  Wires wires;                                    // for the cost model, as measured on it
  std::string why_lower;                          // why its rate is below the requested one, or empty
};

// The rates of kDefaultRates up to `most` for which links of `capacity` have headroom, fastest first; the
// first is tried several times. All in bits/s. Pure.
std::vector<double> RatesToTry(double capacity, double most);

// What a user can do if this host cannot carry the links `asked`: a lower rate, fewer workers, a slower run
// (--scale; only if `asked` has a rate) or a prediction. `capacity`: of links without a limit. `carried`: by
// the links that fell short, which limits the suggested rate. Both in bits/s. Pure.
std::string LinkAdvice(const LinkOptions& asked, double capacity, double carried, int nodes);

// A cluster of `nodes` with links of `asked.bits_per_s` / `asked.scale`. With `may_lower`, the rate is the
// fastest of kDefaultRates, up to the requested one, that this host carries with headroom while every node
// sends. Takes about 4 s, and at least as long again for each rate that falls short. FailedPrecondition: the
// host carries no such rate; the message states what it carries and what to do.
absl::StatusOr<CarriedCluster> BuildCarriedCluster(const LinkOptions& asked, bool may_lower, Shaping shaping,
                                                   int nodes, const Interrupt& interrupt);

}  // namespace psring
