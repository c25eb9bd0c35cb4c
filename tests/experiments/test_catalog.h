// Strategies, a probe and configurations for tests.
#pragma once

#include <string>
#include <vector>

#include "experiments/design/plan.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

inline const StrategyRow kRing = *FindStrategy("ring");
inline const StrategyRow kSync = *FindStrategy("ps-sync");
inline const StrategyRow kAsync = *FindStrategy("ps-async");

inline Probe TestProbe() {
  Probe probe{
      .samples = 60000, .test_samples = 10000, .parameters = 1863690, .step_s = 0.0135, .launch_s = 0.4};
  for (const StrategyRow& strategy : StrategyRows())
    probe.updates.push_back(
        {.strategy = strategy.name, .optimizer = "momentum", .lr = 0.05, .momentum = 0.9});
  probe.updates.push_back({.strategy = kWithoutFlush, .optimizer = "sgd", .lr = 0.05});
  return probe;
}

inline Configuration TestConfiguration(const std::string& strategy, int workers, int cores = 64) {
  return *MakeConfiguration(strategy, workers, TrainingOptions(), TestProbe(), cores);
}

// `cores`: of this machine.
inline Plan PlanFor(const CompareOptions& options, int cores = 2, const Probe& probe = TestProbe()) {
  return MakePlan(options, probe, cores).value();
}

// Of configurations, such as "ring x 2".
inline std::vector<std::string> Names(const std::vector<Configuration>& configurations) {
  std::vector<std::string> names;
  for (const Configuration& configuration : configurations) names.push_back(configuration.name());
  return names;
}

}  // namespace psring
