// --local_aggregation: the ranks of a machine add up their gradients in their process group, and its rank 0,
// the *leader*, exchanges the sum with the parameter servers. To a server each machine is one worker (BytePS,
// Jiang et al. 2020, 4.2; MXNet's `device` key-value store; TensorFlow's mirrored towers).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// The machine of a rank. Every machine has as many ranks, numbered consecutively.
struct MachineRanks {
  int number = 0;  // the worker number for the servers
  std::vector<int> ranks;
  bool leads = false;  // whether this rank is the leader
};
MachineRanks MachineOf(int rank, int per_machine);

// For the group of a machine's ranks. With --deterministic it adds in the order of ranks (`star`), else each
// rank adds a part (`direct`). --transport is for the exchange with the servers. It waits a little longer
// than servers and clients do, so that they name a silent peer on another machine.
GroupOptions MachineGroupOptions(const TrainingOptions& options, int gpu);

// InvalidArgument: `strategy` has servers but cannot be combined with --local_aggregation.
absl::Status CheckLocalAggregation(const TrainingOptions& options, const StrategyRow& strategy);

// `context`: `group` has the machine's ranks; the leader has `servers.client`. Restarted servers are an
// error.
absl::StatusOr<Strategy> MakeLocalAggregation(const StrategyContext& context);

}  // namespace psring
