// The makers behind the rows of registry.cc.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Whether an update is the same work in every step of as many samples, so that a recording may hold it: Adam
// corrects by the number of the step, schedules by the samples so far, clipping by the gradient.
inline bool UpdatesRepeat(const StrategyContext& context) {
  return context.optimizer.kind != OptimizerKind::kAdam && context.schedule.decay == LrDecay::kConstant &&
         context.schedule.warmup_samples == 0 && context.clip_norm == 0;
}

// none.cc: no communication; every rank applies its own gradient.
absl::StatusOr<std::unique_ptr<SyncStrategy>> MakeNone(const StrategyContext& context);

// all_reduce.cc: the group sums the gradients, every rank makes the same update. A single rank needs no
// group.
absl::StatusOr<std::unique_ptr<SyncStrategy>> MakeAllReduce(const StrategyContext& context);

// parameter_server.cc: the server sums and updates; the context's algorithm says who waits for whom.
absl::StatusOr<std::unique_ptr<SyncStrategy>> MakeParameterServer(const StrategyContext& context);

}  // namespace psring
