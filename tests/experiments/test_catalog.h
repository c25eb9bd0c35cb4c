// A catalog and a probe as the trainer reports them.
#pragma once

#include "experiments/plan/plan.h"
#include "experiments/theory/catalog.h"

namespace psring {

inline const StrategyInfo kRing{.name = "ring", .uses_group = true, .algorithm = "ring", .synchronous = true};
inline const StrategyInfo kSync{
    .name = "ps-sync", .uses_servers = true, .algorithm = "sync", .synchronous = true};

inline Catalog TestCatalog() {
  Catalog catalog;
  catalog.strategies = {
      {.name = "none"},
      {.name = "single", .synchronous = true, .single_process = true},
      {.name = "dp", .synchronous = true, .single_process = true, .replicates = true},
      {.name = "star", .uses_group = true, .backend = "native", .algorithm = "star", .synchronous = true},
      {.name = "ring", .uses_group = true, .backend = "native", .algorithm = "ring", .synchronous = true},
      {.name = "ps-sync",
       .uses_servers = true,
       .backend = "native",
       .algorithm = "sync",
       .synchronous = true},
      {.name = "ps-backup",
       .uses_servers = true,
       .backend = "native",
       .algorithm = "backup",
       .synchronous = true,
       .drops_gradients = true,
       .number_letter = "B",
       .number_meaning = "spare workers",
       .number_below_workers = true},
      {.name = "ps-ssp",
       .uses_servers = true,
       .backend = "native",
       .algorithm = "ssp",
       .number_letter = "K",
       .number_meaning = "lead",
       .number_least = 1},
      {.name = "ps-async",
       .uses_servers = true,
       .backend = "native",
       .algorithm = "async",
       .shares_steps = true},
      {.name = "hybrid",
       .uses_group = true,
       .uses_servers = true,
       .backend = "native",
       .algorithm = "ring",
       .synchronous = true},
  };
  catalog.models = {{.name = "mlp", .parameters = 1863690},
                    {.name = "cnn", .parameters = 1199882},
                    {.name = "dlrm-small", .parameters = 30'000, .has_tables = true}};
  catalog.data = {"fashion-mnist", "mnist", "synthetic"};
  return catalog;
}

inline Probe TestProbe() {
  Probe probe{
      .samples = 60000, .test_samples = 10000, .parameters = 1863690, .step_s = 0.0135, .launch_s = 0.4};
  for (const StrategyInfo& strategy : TestCatalog().strategies) {
    probe.updates.push_back(
        {.strategy = strategy.name, .optimizer = "momentum", .lr = 0.05, .momentum = 0.9});
  }
  return probe;
}

inline Configuration TestConfiguration(const std::string& strategy, int workers, int cores = 64) {
  return *MakeConfiguration(strategy, workers, TrainingOptions(), TestCatalog(), TestProbe(), cores);
}

}  // namespace psring
