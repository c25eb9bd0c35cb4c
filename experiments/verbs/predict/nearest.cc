#include "experiments/verbs/predict/nearest.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "common/text/units.h"

namespace psring {
namespace {

// Oldest first. Other devices (CPUs, unnamed GPUs) are unknown.
constexpr const char* kGenerations[] = {"K80", "Titan X", "P100", "V100", "A100", "H100"};
constexpr double kUnknownGeneration = 1;
constexpr double kSameRate = 2.5;  // rates within this factor count as equal

int GenerationOf(const std::string& device) {
  for (size_t i = 0; i < std::size(kGenerations); ++i) {
    if (absl::StrContains(device, kGenerations[i])) return static_cast<int>(i);
  }
  return -1;
}

double RateOf(const Cluster& cluster) { return cluster.link_bytes_per_s * cluster.cards_per_node; }

int MachinesOf(const PublishedSystem& system) { return MostGpus(system) / system.cluster.gpus_per_node; }

double Distance(const Situation& situation, const PublishedSystem& system) {
  const int generation = GenerationOf(situation.gpu);
  double distance =
      generation < 0 ? kUnknownGeneration : 0.5 * std::abs(generation - GenerationOf(system.gpu));
  if (situation.rdma != (system.rdma)) distance += 2;
  distance += 0.5 * std::abs(std::log2(RateOf(situation.cluster) / RateOf(system.cluster)));
  const double machines = ShapeOf(situation.cluster, situation.point.workers).nodes;
  distance += 0.25 * std::max(0.0, std::log2(machines / MachinesOf(system)));
  // How gradients are sent matters more than the rate.
  const bool whole_machines = situation.cluster.gpus_per_node == 1 || situation.options.local_aggregation;
  if (system.servers) {
    if (situation.options.pipelined != system.options.pipelined) distance += 2;
    if (situation.options.place != system.options.place) distance += 0.5;
    if (!whole_machines) distance += 0.5;
    if ((situation.cluster.gpus_per_node > 1) != (system.cluster.gpus_per_node > 1)) distance += 0.5;
  }
  return distance;
}

}  // namespace

bool LooksLikeRdma(const Cluster& cluster) { return cluster.latency_s < 10e-6; }

const PublishedSystem& NearestSystem(const Situation& situation) {
  const PublishedSystem* nearest = nullptr;
  double least = INFINITY;
  for (const PublishedSystem& system : PublishedSystems()) {
    if (system.servers != situation.point.strategy.uses_servers) continue;
    const double distance = Distance(situation, system);
    if (distance >= least) continue;
    least = distance;
    nearest = &system;
  }
  PSRING_CHECK(nearest != nullptr);
  return *nearest;
}

bool SameEnvironment(const Situation& situation, const PublishedSystem& system) {
  const double rate = RateOf(situation.cluster), known = RateOf(system.cluster);
  return GenerationOf(situation.gpu) == GenerationOf(system.gpu) && situation.rdma == (system.rdma) &&
         rate <= kSameRate * known && rate >= known / kSameRate;
}

std::vector<std::string> Differences(const Situation& situation, const PublishedSystem& system) {
  std::vector<std::string> list;
  const int generation = GenerationOf(situation.gpu);
  if (generation != GenerationOf(system.gpu)) {
    list.push_back(Tr("$0 (calibrated on $1)",
                      generation < 0 ? Tr("a device of no known GPU generation") : kGenerations[generation],
                      system.gpu));
  }
  if (situation.rdma != (system.rdma))
    list.push_back(Tr("$0 (calibrated on $1)", situation.rdma ? "RDMA" : "TCP", system.network()));
  const double rate = RateOf(situation.cluster), known = RateOf(system.cluster);
  if (rate > kSameRate * known || rate < known / kSameRate)
    list.push_back(Tr("machines with $0 (calibrated at $1)", BitRateText(8 * rate), BitRateText(8 * known)));
  const int machines = ShapeOf(situation.cluster, situation.point.workers).nodes;
  if (machines > MachinesOf(system))
    list.push_back(Tr("$0 machines (calibrated up to $1)", machines, MachinesOf(system)));
  const StrategyRow& strategy = situation.point.strategy;
  if (strategy.uses_group && strategy.algorithm != "ring")
    list.push_back(Tr("$0 (calibrated on a ring)", strategy.name));
  if (system.servers) {
    if (strategy.asynchronous())
      list.push_back(Tr("asynchronous (calibrated on synchronous servers; checked against queueing theory)"));
    if (strategy.drops_gradients) list.push_back(Tr("spare workers"));
    if (situation.options.place != system.options.place) list.push_back(Tr("another --server_placement"));
    if (situation.options.pipelined != system.options.pipelined) list.push_back(Tr("another --ps_schedule"));
    if (situation.cluster.gpus_per_node > 1 && !situation.options.local_aggregation)
      list.push_back(Tr("no --local_aggregation"));
    const int wanted = system.options.local_aggregation || situation.cluster.gpus_per_node == 1
                           ? machines
                           : situation.point.workers;
    if (situation.point.servers < wanted)
      list.push_back(Tr("servers: $0 for $1 machines (calibrated with one per machine)",
                        situation.point.servers, machines));
  }
  if (situation.cluster.oversubscription > 1) list.push_back(Tr("an oversubscribed fabric"));
  return list;
}

}  // namespace psring
