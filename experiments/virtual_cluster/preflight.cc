#include "experiments/virtual_cluster/preflight.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/text/units.h"

namespace psring {

namespace {

// Fastest first.
constexpr double kSuggestedRates[] = {100e9, 50e9,  25e9,  10e9, 5e9,  2.5e9, 1e9,
                                      500e6, 250e6, 100e6, 50e6, 25e6, 10e6};
constexpr double kSuggestedScales[] = {2, 5, 10, 20, 50, 100, 200, 500, 1000};

constexpr int kRateTries = 3;  // before the rate is lowered, because other programs can disturb a measurement

// The rate as a value of --link.
std::string FlagText(double rate) {
  return rate >= 1e9 ? absl::StrFormat("%ggbit", rate / 1e9) : absl::StrFormat("%gmbit", rate / 1e6);
}

}  // namespace

std::vector<double> RatesToTry(double capacity, double most) {
  std::vector<double> rates;
  for (const double rate : kDefaultRates) {
    if (rate > most || kHeadroom * rate > capacity) continue;
    rates.insert(rates.end(), rates.empty() ? kRateTries : 1, rate);
  }
  return rates;
}

std::string LinkAdvice(const LinkOptions& asked, double capacity, double carried, int nodes) {
  const double limit = std::min(carried, capacity / kHeadroom);
  std::string advice = "use ";
  for (const double rate : kSuggestedRates) {
    if (rate > limit * asked.scale) continue;
    absl::StrAppend(&advice, "--link ", FlagText(rate), ", ");
    break;
  }
  if (nodes > 2) absl::StrAppend(&advice, "fewer workers, ");
  for (const double scale : kSuggestedScales) {
    if (asked.bits_per_s <= 0 || asked.bits_per_s > limit * scale) continue;
    absl::StrAppendFormat(&advice, "--scale %.0f with a replayed --workload (results are simulated), ",
                          scale);
    break;
  }
  return absl::StrCat(advice, "or simulate the network with psring predict");
}

absl::StatusOr<CarriedCluster> BuildCarriedCluster(const LinkOptions& asked, bool may_lower, Shaping shaping,
                                                   int nodes, const Interrupt& interrupt) {
  LinkOptions options = asked;  // as built
  options.bits_per_s /= asked.scale;
  options.latency_s *= asked.scale;
  double capacity = 0;
  std::vector<double> rates = {options.bits_per_s};
  if (options.bits_per_s > 0 && nodes > 1) {
    const double needed = (may_lower ? kHeadroom : kLeastShare) * options.bits_per_s;
    for (int i = 0; i < kRateTries && capacity < needed; ++i) {
      PSRING_ASSIGN_OR_RETURN(const double measured,
                              VirtualCluster::MeasureCapacity(options, shaping, nodes, interrupt));
      capacity = std::max(capacity, measured);
    }
    if (may_lower) {
      rates = RatesToTry(capacity, options.bits_per_s);
    } else if (capacity < needed) {
      rates.clear();
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
                      LinkAdvice(may_lower ? LinkOptions() : asked, capacity, least_carried, nodes)));
}

}  // namespace psring
