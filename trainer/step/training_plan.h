// What the flags come to, once data, world size, model and strategy are known. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ops/optimizer.h"
#include "common/options/training_options.h"
#include "trainer/models/model.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// How many steps each worker makes.
struct StepPlan {
  int64_t warmup_steps = 0;
  int64_t steps = 0;          // measured ones
  int64_t global_batch = 0;   // samples of all workers' gradients that make up one step
  int64_t total_samples = 0;  // over all workers, warm-up included: where a linear schedule ends
  int64_t drawn_batch = 0;    // samples that all workers draw for a step: more where some are spare
  int64_t steps_per_epoch = 0;
  int64_t epoch_samples = 0;  // in the updates of one epoch; fewer than steps_per_epoch global batches where
                              // the last is short
  int64_t total_steps() const { return warmup_steps + steps; }
  // In the updates of all steps before `step`.
  int64_t SamplesBefore(int64_t step) const;
  // In the first `updates`, `per_step` of which the workers make in a step's time. Exact where that is 1;
  // else a step's last batch, where it is short, counts as if it were spread evenly.
  int64_t SamplesIn(int64_t updates, int per_step) const;
};

// The budget is the first of --steps, --samples and --epochs that is given; one epoch where none is. Samples
// and epochs are rounded to the nearest whole step, one at least. InvalidArgument: a global batch that is
// larger than the data, where a last batch that is short is dropped.
absl::StatusOr<StepPlan> PlanSteps(const TrainingOptions& options, int64_t data_count, int world_size);

// The rule of an update and its rate.
struct UpdatePlan {
  OptimizerConfig optimizer;
  LrSchedule schedule;
};

// Where --lr is not given it is, for momentum, the model's rate, for plain SGD and the asynchronous modes
// (whose momentum is 0 unless asked for) the model's asynchronous rate times 1 - momentum, and .001 for Adam.
absl::StatusOr<UpdatePlan> PlanUpdates(const TrainingOptions& options, const StrategyRow& strategy,
                                       const ModelRow& model, const StepPlan& steps, int64_t data_count);

// InvalidArgument where `device` does not compute as --precision and --cuda_graph ask.
absl::Status CheckDevice(const TrainingOptions& options, const Device& device);

// InvalidArgument where `strategy` cannot run so: `single` on several ranks, micro-batches elsewhere, no
// worker that is not spare.
absl::Status CheckStrategy(const TrainingOptions& options, const StrategyRow& strategy, int world_size);

// Asynchronous workers share the steps: whoever is faster makes more of them, so that nobody runs on alone
// with weights that no longer change under it. Whether a worker that has read `version` is done. While all
// run, each of the others has one gradient on its way; so the first to read version T - N + 1 stops, the N -
// 1 gradients on their way stop the others, and the updates are T = N * `total_steps`, exactly.
bool SharedStepsAreOver(int64_t version, int workers, int64_t total_steps);

// One line each, for stderr: what is legal and will probably hurt.
std::vector<std::string> PlanWarnings(const StrategyRow& strategy, const UpdatePlan& updates);

// How ranks make a checkpoint together.
struct CheckpointPlan {
  bool pauses_updates;  // each worker's push is an update, so workers wait while rank 0 reads the server
  bool ranks_meet;      // the others meet rank 0 with their parts, or are lost
  bool same_step;       // all ranks' parts are of one step
  bool barrier;         // all ranks wait until it is written
};
CheckpointPlan PlanCheckpoints(const TrainingOptions& options, const StrategyRow& strategy);

// The workers whose gradients are dropped in every step: B of "ps-backup:B", else 0.
int SpareWorkers(const std::string& strategy);

}  // namespace psring
