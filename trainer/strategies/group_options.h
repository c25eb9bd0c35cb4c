// A process group's options, from a strategy and the flags. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/options/training_options.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// For a strategy that needs a process group. --backend replaces the backend of strategies that are native; a
// strategy that names another library or a transport keeps it. Without --backend, --pp and --tp, `ring`,
// `zero1`, `zero2` and `fsdp` between GPUs use NCCL's ring if NCCL is in this build (see BackendNote). Native
// groups work on GPU memory unless gradients are rounded to 16 bits, which happens on the host. `gpu`:
// Device::gpu() of this rank.
GroupOptions GroupOptionsOf(const StrategyRow& strategy, const TrainingOptions& options, int gpu = -1);

// What to tell the user if GroupOptionsOf chose another backend than the strategy's; else empty.
std::string BackendNote(const StrategyRow& strategy, const TrainingOptions& options, int gpu);

// InvalidArgument or NotFound: the backend of `strategy` is not in this build, or does not offer its
// algorithm, transport or collectives. OK for strategies without a group.
absl::Status CheckGroup(const StrategyRow& strategy, const TrainingOptions& options);

// InvalidArgument: --backend or --transport is given but has no effect.
absl::Status CheckGroupFlagsCount(const StrategyRow& strategy, const TrainingOptions& options);

}  // namespace psring
