#include "experiments/verbs/predict/causes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/verbs/predict/published_check.h"

namespace psring {
namespace {

// Oldest first. Other devices (CPUs, unnamed GPUs) are unknown.
constexpr const char* kGenerations[] = {"K80", "Titan X", "P100", "V100", "A100", "H100"};

// Links whose rates differ by this factor are at distance 1; TCP and RDMA at distance 1.5; programs that
// gather weights and others at distance 3, because what ZeRO-3 lost others did not.
constexpr double kRateScale = 4, kNetworkScale = 1.5, kGatheringScale = 3;
constexpr double kPriorWeight = 1;  // of a constant's prior; the most similar system has 1, too
// 80% of the values of each cause are between its ends; together with the model's error, ranges then hold 9
// of 10 published steps.
constexpr double kTail = 0.1;

struct Weighted {
  double value, weight;
};

double RateOf(const Cluster& cluster) { return cluster.link_bytes_per_s * cluster.cards_per_node; }

// A published system, or a published training of layouts.
struct Observed {
  const void* source;
  const Cluster& cluster;
  bool rdma;
  bool gathers;  // weights
  const Constants& constants;
};

std::vector<Observed> ObservedSystems() {
  std::vector<Observed> all;
  for (const PublishedSystem& system : PublishedSystems()) {
    all.push_back({&system, system.cluster, system.rdma, false, system.constants});
  }
  return all;
}

// What is predicted.
struct Target {
  const Cluster& cluster;
  double rdma;
  bool gathers = false;
};

// By system, 0 for `left_out`. A weight falls with the square of the distance, so no system is ever
// negligible.
std::vector<double> WeightsOf(const std::vector<Observed>& systems, const Target& target,
                              const void* left_out) {
  std::vector<double> weights;
  double most = 0;
  for (const Observed& system : systems) {
    const double rate = std::log(RateOf(target.cluster) / RateOf(system.cluster)) / std::log(kRateScale);
    const double network = kNetworkScale * (target.rdma - (system.rdma ? 1 : 0));
    const double family = system.gathers == target.gathers ? 0 : kGatheringScale;
    weights.push_back(
        system.source == left_out ? 0 : 1 / (1 + rate * rate + network * network + family * family));
    most = std::max(most, weights.back());
  }
  for (double& weight : weights) weight /= most;
  return weights;
}

// The share of a card's rate that programs get if they got `fraction` at another rate. Up to 5% are headers;
// the rest are costs of the host, which take the same time per byte with a slower card. A faster card comes
// with a faster host: by the root of the rates' ratio.
double FractionAt(double rate, double fraction, double other_rate) {
  constexpr double kHeaders = 1 / 0.95;
  const double headers = std::min(1 / fraction, kHeaders), ratio = rate / other_rate;
  return 1 / (headers + (1 / fraction - headers) * std::min(ratio, std::sqrt(ratio)));
}

// Of a cause, for the links of `cluster`.
double ValueIn(const Cluster& of_system, const Constants& constants, const std::string& name,
               const Cluster& cluster) {
  const double value = constants.at(name);
  return name == "fraction" ? FractionAt(cluster.link_bytes_per_s, value, of_system.link_bytes_per_s) : value;
}

// Of positive values, each smoothed by a log-normal kernel, so that the quantile is continuous in values and
// weights.
double QuantileOf(const std::vector<Weighted>& values, double fraction) {
  constexpr double kBandwidth = 0.15;
  constexpr int kSteps = 50;
  double all = 0, low = INFINITY, high = -INFINITY;
  for (const auto& [value, weight] : values) {
    all += weight;
    low = std::min(low, std::log(value) - 5 * kBandwidth);
    high = std::max(high, std::log(value) + 5 * kBandwidth);
  }
  for (int step = 0; step < kSteps; ++step) {
    const double middle = (low + high) / 2;
    double below = 0;
    for (const auto& [value, weight] : values)
      below += weight / 2 * std::erfc((std::log(value) - middle) / kBandwidth / std::sqrt(2.0));
    (below < fraction * all ? low : high) = middle;
  }
  return std::exp(high);
}

// The deciles of the constant's prior, which share kPriorWeight.
std::vector<Weighted> PriorOf(const ConstantInfo& info) {
  constexpr double kDeciles[] = {-1.2816, -0.8416, -0.5244, -0.2533, 0, 0.2533, 0.5244, 0.8416, 1.2816};
  std::vector<Weighted> values;
  for (const double decile : kDeciles) {
    const double value = info.start * std::exp(info.spread * decile);
    values.push_back({std::clamp(value, info.least, info.most), kPriorWeight / std::size(kDeciles)});
  }
  return values;
}

Causes CausesAmong(const std::vector<Observed>& systems, const Target& target, const void* left_out) {
  Causes causes;
  const std::vector<double> weights = WeightsOf(systems, target, left_out);
  for (const std::string& name : FittedCauses()) {
    const ConstantInfo& info = *FindConstant(name);
    std::vector<Weighted> values = PriorOf(info);
    for (size_t i = 0; i < systems.size(); ++i) {
      if (weights[i] > 0 && systems[i].constants.contains(name)) {
        values.push_back(
            {ValueIn(systems[i].cluster, systems[i].constants, name, target.cluster), weights[i]});
      }
    }
    const auto at = [&](double part) { return std::clamp(QuantileOf(values, part), info.least, info.most); };
    causes[name] = {at(kTail), at(0.5), at(1 - kTail)};
  }
  return causes;
}

int GenerationOf(const std::string& device) {
  if (absl::StrContains(device, " times as fast as ")) return -1;  // --compute_speedup
  for (size_t i = 0; i < std::size(kGenerations); ++i) {
    if (absl::StrContains(device, kGenerations[i])) return static_cast<int>(i);
  }
  return -1;
}

// What the systems other than `left_out` cover.
struct Coverage {
  std::vector<std::string> gpus;  // distinct
  double least_rate = INFINITY, most_rate = 0;
  int machines = 0;          // of the same family, servers or all-reduces
  bool rdma = false;         // of that family
  bool placement = false;    // servers: the situation's
  bool aggregation = false;  // servers: without it, with several GPUs in a machine
};

Coverage CoverageOf(const Situation& situation, const PublishedSystem* left_out) {
  Coverage all;
  for (const PublishedSystem& system : PublishedSystems()) {
    if (&system == left_out) continue;
    if (std::ranges::find(all.gpus, std::string(system.gpu)) == all.gpus.end())
      all.gpus.emplace_back(system.gpu);
    all.least_rate = std::min(all.least_rate, RateOf(system.cluster));
    all.most_rate = std::max(all.most_rate, RateOf(system.cluster));
    if (system.servers != situation.point.strategy.uses_servers) continue;
    all.machines = std::max(all.machines, MostGpus(system) / system.cluster.gpus_per_node);
    all.rdma = all.rdma || system.rdma;
    all.placement = all.placement || system.options.place == situation.options.place;
    all.aggregation =
        all.aggregation || (system.cluster.gpus_per_node > 1 && !system.options.local_aggregation);
  }
  return all;
}

// What of the devices, the links and the number of machines is not in `covered`.
std::vector<std::string> DifferencesOfMachines(const std::string& device, const Cluster& cluster,
                                               int machines, const Coverage& covered) {
  constexpr double kSameRate = 1.25;
  std::vector<std::string> list;
  const int generation = GenerationOf(device);
  const std::string gpu = generation < 0 ? "" : kGenerations[generation];
  if (std::ranges::find(covered.gpus, gpu) == covered.gpus.end()) {
    list.push_back(Tr("$0 (calibrated on $1)",
                      generation < 0 ? Tr("a device of no known GPU generation") : gpu,
                      absl::StrJoin(covered.gpus, ", ")));
  }
  const double rate = RateOf(cluster);
  if (rate > kSameRate * covered.most_rate || rate < covered.least_rate / kSameRate) {
    list.push_back(Tr("machines with $0 (calibrated from $1 to $2)", BitRateText(8 * rate),
                      BitRateText(8 * covered.least_rate), BitRateText(8 * covered.most_rate)));
  }
  if (machines > covered.machines) {
    list.push_back(Tr("$0 machines (calibrated up to $1)", machines, covered.machines));
  }
  return list;
}

void AddDifferencesOfServers(const Situation& situation, const Coverage& covered, int machines,
                             std::vector<std::string>& list) {
  const StrategyRow& strategy = situation.point.strategy;
  const bool several = situation.cluster.gpus_per_node > 1;
  if (strategy.asynchronous())
    list.push_back(Tr("asynchronous (calibrated on synchronous servers; checked against queueing theory)"));
  if (strategy.drops_gradients) list.push_back(Tr("spare workers"));
  if (!covered.placement) list.push_back(Tr("another --server_placement"));
  if (situation.rdma > 0.5 && !covered.rdma) list.push_back(Tr("servers over RDMA (calibrated over TCP)"));
  if (several && !situation.options.local_aggregation && !covered.aggregation)
    list.push_back(Tr("no --local_aggregation"));
  if (situation.point.servers < machines)
    list.push_back(Tr("servers: $0 for $1 machines (calibrated with one per machine)",
                      situation.point.servers, machines));
}

}  // namespace

double RdmaShare(const Cluster& cluster) {
  constexpr double kLimit = 10e-6;
  return 1 / (1 + std::pow(cluster.latency_s / kLimit, 3));
}

Causes CausesOf(const Cluster& cluster, double rdma, const PublishedSystem* left_out) {
  Causes causes = CausesAmong(ObservedSystems(), {cluster, rdma}, left_out);
  const double latency_us = 1e6 * cluster.latency_s;
  causes["latency_us"] = {latency_us / 2, latency_us, 2 * latency_us};
  // Only where it can be felt: RDMA has none, and the others carry more than a card at usual latencies.
  const ConstantInfo& window = *FindConstant("window_mb");
  const CauseRange mb = {window.start / 2, window.start, 2 * window.start};
  const double least_bytes_per_s = mb.low * (1 << 20) / (2 * 2 * cluster.latency_s);
  if (rdma < 0.5 && least_bytes_per_s < cluster.link_bytes_per_s) causes[window.name] = mb;
  return causes;
}

Causes CausesOfLayouts(const Cluster& cluster, double rdma, bool gathers, const PublishedTraining* left_out) {
  std::vector<Observed> systems = ObservedSystems();
  const std::vector<Constants>& fitted = FittedTrainings();
  for (size_t i = 0; i < fitted.size(); ++i) {
    const PublishedTraining& training = PublishedTrainings()[i];
    systems.push_back({&training, training.cluster, true, Gathers(training), fitted[i]});
  }
  return CausesAmong(systems, {cluster, rdma, gathers}, left_out);
}

Causes CausesLike(const PublishedSystem& system, const Cluster& cluster, double rdma) {
  Causes causes = CausesOf(cluster, rdma);
  for (const auto& [name, fitted] : system.constants) {
    const double value = ValueIn(system.cluster, system.constants, name, cluster);
    causes[name] = {value, value, value};
  }
  return causes;
}

std::vector<std::string> SimilarSystems(const Cluster& cluster, double rdma) {
  constexpr size_t kMaxNames = 3;
  const std::vector<double> weights = WeightsOf(ObservedSystems(), {cluster, rdma}, nullptr);
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return weights[i]; });
  std::vector<std::string> names;
  for (const size_t i : order) {
    if (names.size() < kMaxNames && weights[i] > 0.5) names.emplace_back(PublishedSystems()[i].name);
  }
  return names;
}

std::vector<Constants> GuessesOf(Causes causes, int nodes) {
  const auto fraction = causes.find("fraction"), loss = causes.find("node_loss");
  if (fraction != causes.end() && loss != causes.end()) {
    const auto share = [&](double node_loss) {
      return WithNodes({.fraction = 1, .node_loss = node_loss}, nodes).fraction;
    };
    CauseRange &both = fraction->second, &of_nodes = loss->second;
    const double expected = share(of_nodes.expected);
    const double down = std::hypot(std::log(both.expected / both.low),
                                   std::log(expected / share(of_nodes.high))),
                 up = std::hypot(std::log(both.high / both.expected),
                                 std::log(share(of_nodes.low) / expected));
    both = {both.expected * std::exp(-down), both.expected,
            std::min(both.expected * std::exp(up), 1 / expected)};
    of_nodes.low = of_nodes.high = of_nodes.expected;
  }
  Constants expected;
  for (const auto& [name, range] : causes) expected[name] = range.expected;
  std::vector<Constants> guesses = {expected};
  for (const auto& [name, range] : causes) {
    if (range.low == range.high) continue;
    for (const double value : {range.low, range.high}) {
      guesses.push_back(expected);
      guesses.back()[name] = value;
    }
  }
  return guesses;
}

Interval RatiosOf(const std::vector<double>& logs, double error) {
  double down = error * error, up = down;
  for (size_t i = 1; i + 1 < logs.size(); i += 2) {
    down += std::pow(std::min({0.0, logs[i], logs[i + 1]}), 2);
    up += std::pow(std::max({0.0, logs[i], logs[i + 1]}), 2);
  }
  return {std::exp(-std::sqrt(down)), std::exp(std::sqrt(up))};
}

std::vector<std::string> Differences(const Situation& situation, const PublishedSystem* left_out) {
  const Coverage covered = CoverageOf(situation, left_out);
  const int machines = ShapeOf(situation.cluster, situation.point.workers).nodes;
  std::vector<std::string> list = DifferencesOfMachines(situation.gpu, situation.cluster, machines, covered);
  const StrategyRow& strategy = situation.point.strategy;
  if (strategy.uses_group && strategy.algorithm != "ring")
    list.push_back(Tr("$0 (calibrated on a ring)", strategy.name));
  if (strategy.uses_servers) AddDifferencesOfServers(situation, covered, machines, list);
  if (situation.cluster.oversubscription > 1) list.push_back(Tr("an oversubscribed fabric"));
  return list;
}

std::vector<std::string> LayoutDifferences(const std::string& gpu, const Cluster& cluster, int workers) {
  Coverage covered{.gpus = {"A100", "H100"}};
  for (const PublishedTraining& training : PublishedTrainings()) {
    covered.least_rate = std::min(covered.least_rate, RateOf(training.cluster));
    covered.most_rate = std::max(covered.most_rate, RateOf(training.cluster));
    for (const PublishedLayout& row : training.rows) {
      covered.machines = std::max(covered.machines, ShapeOf(training.cluster, row.workers).nodes);
    }
  }
  return DifferencesOfMachines(gpu, cluster, ShapeOf(cluster, workers).nodes, covered);
}

double ModelError(size_t differences, double factor) {
  return std::log(factor) * std::sqrt(1 + static_cast<double>(differences));
}

}  // namespace psring
