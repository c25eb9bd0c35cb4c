#include "experiments/virtual_cluster/preflight.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/bit_rate.h"
#include "common/base/check.h"

namespace psring {

double RateWithHeadroom(double capacity, double most) {
  for (const double rate : kDefaultRates) {
    if (rate <= most && kHeadroom * rate <= capacity) return rate;
  }
  return 0;
}

std::string LinkAdvice(double capacity, double carried, int nodes) {
  const double rate = RateWithHeadroom(capacity, carried);
  return absl::StrCat("use --link ", rate > 0 ? absl::StrFormat("%.0fmbit", rate / 1e6) : "none",
                      nodes > 2 ? ", fewer workers," : "", " or simulate the network with psring predict");
}

absl::StatusOr<CarriedCluster> BuildCarriedCluster(const LinkOptions& options, bool may_lower,
                                                   Shaping shaping, int nodes, const Interrupt& interrupt) {
  double capacity = 0;
  std::vector<double> rates = {options.bits_per_s};
  if (options.bits_per_s > 0 && nodes > 1) {
    PSRING_ASSIGN_OR_RETURN(capacity, VirtualCluster::MeasureCapacity(options, shaping, nodes, interrupt));
    rates.clear();
    if (may_lower) {
      const double fastest = RateWithHeadroom(capacity, options.bits_per_s);
      for (const double rate : kDefaultRates) {
        if (rate <= fastest) rates.push_back(rate);
      }
    } else if (capacity >= kLeastShare * options.bits_per_s) {
      rates.push_back(options.bits_per_s);
    }
  }
  std::string fell_short;
  double least_carried = options.bits_per_s;  // by links that fell short
  for (const double rate : rates) {
    LinkOptions carried = options;
    carried.bits_per_s = rate;
    PSRING_ASSIGN_OR_RETURN(std::unique_ptr<VirtualCluster> cluster,
                            VirtualCluster::Create(carried, shaping, nodes, interrupt));
    PSRING_ASSIGN_OR_RETURN(const Wires wires, cluster->Measure(capacity));
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    const std::string shortfall = WhyNotCarried(cluster->report());
    if (shortfall.empty()) {
      CarriedCluster built{.wires = wires};
      if (rate < options.bits_per_s) {
        built.why_lower = absl::StrFormat(
            "%s links instead of %s: this machine carries %.0f Mbit/s on each link while %d nodes send",
            BitRateText(rate), BitRateText(options.bits_per_s), capacity / 1e6, nodes);
        if (!fell_short.empty()) absl::StrAppend(&built.why_lower, ", and ", fell_short);
      }
      built.cluster = std::move(cluster);
      return built;
    }
    fell_short = shortfall;
    least_carried = std::min(least_carried, LeastCarried(cluster->report()));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("this machine cannot carry %s links%s: without a limit each link carries %.0f Mbit/s "
                      "while %d nodes send%s; %s",
                      BitRateText(may_lower ? *std::rbegin(kDefaultRates) : options.bits_per_s),
                      may_lower ? " with headroom" : "", capacity / 1e6, nodes,
                      fell_short.empty() ? "" : absl::StrCat(", and ", fell_short),
                      LinkAdvice(capacity, least_carried, nodes)));
}

}  // namespace psring
