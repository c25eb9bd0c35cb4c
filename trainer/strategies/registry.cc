// Every way of synchronising, one row each. `compare`, --help and the conformance test read this table.
#include "trainer/names.h"
#include "trainer/strategies/strategies.h"

namespace psring {

const std::vector<StrategyRow>& Strategies() {
  static const std::vector<StrategyRow> strategies = {
      {.name = "none",
       .summary = "no communication, replicas drift apart: the ceiling of speed",
       .needs = Needs::kNothing,
       .algorithm = "",
       .synchronous = false,
       .single_process = false,
       .default_momentum = .9,
       .make = MakeNone},
      {.name = "single",
       .summary = "one process: the reference of results",
       .needs = Needs::kNothing,
       .algorithm = "",
       .synchronous = true,
       .single_process = true,
       .default_momentum = .9,
       .make = MakeNone},
      {.name = "star",
       .summary = "all-reduce through rank 0, which gathers, adds and hands back",
       .needs = Needs::kProcessGroup,
       .algorithm = "star",
       .synchronous = true,
       .single_process = false,
       .default_momentum = .9,
       .make = MakeAllReduce},
      {.name = "ring",
       .summary = "ring all-reduce: scatter-reduce, then all-gather",
       .needs = Needs::kProcessGroup,
       .algorithm = "ring",
       .synchronous = true,
       .single_process = false,
       .default_momentum = .9,
       .make = MakeAllReduce},
      {.name = "ps-sync",
       .summary = "parameter server, one update for all workers' gradients",
       .needs = Needs::kParameterServer,
       .algorithm = "sync",
       .synchronous = true,
       .single_process = false,
       .default_momentum = .9,
       .make = [](const StrategyContext& context) { return MakeParameterServer(context, "sync"); }},
      // Momentum adds up gradients that are late by N-1 updates: with 0.9 it diverges where plain SGD does
      // not.
      {.name = "ps-async",
       .summary = "parameter server, an update for each worker's gradient as it arrives",
       .needs = Needs::kParameterServer,
       .algorithm = "async",
       .synchronous = false,
       .single_process = false,
       .default_momentum = 0,
       .make = [](const StrategyContext& context) { return MakeParameterServer(context, "async"); }},
  };
  return strategies;
}

absl::StatusOr<const StrategyRow*> FindStrategy(const std::string& name) {
  std::vector<std::string> names;
  for (const StrategyRow& row : Strategies()) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  return UnknownName("strategy", name, names);
}

}  // namespace psring
