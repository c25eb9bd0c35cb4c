// From a strategy and the flags to a process group's options. Pure.
#pragma once

#include "absl/status/status.h"
#include "common/options/training_options.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Of a strategy that needs a process group. Strategies that are somebody else's stay theirs: --backend is for
// those that say how to move, not who moves. Between GPUs, `ring` is NCCL pinned to its ring unless --backend
// says otherwise; ours are told of the GPU but where gradients travel in 16 bits, to which the host rounds
// them. `gpu`: Device::gpu() of this rank.
GroupOptions GroupOptionsOf(const StrategyRow& strategy, const TrainingOptions& options, int gpu = -1);

// InvalidArgument or NotFound where the backend of `strategy` is not in this build, or does not offer its
// algorithm or transport. OK for strategies without a group.
absl::Status CheckGroup(const StrategyRow& strategy, const TrainingOptions& options);

// InvalidArgument where --backend or --transport is given and would do nothing.
absl::Status CheckGroupFlagsCount(const StrategyRow& strategy, const TrainingOptions& options);

}  // namespace psring
