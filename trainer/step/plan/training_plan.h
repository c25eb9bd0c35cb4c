// Decisions from the flags, data, world size, model and strategy. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ops/optimizer.h"
#include "common/options/training_options.h"
#include "trainer/models/model.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// How many steps each worker makes. Samples of a text are its tokens.
struct StepPlan {
  int64_t warmup_steps = 0;
  int64_t steps = 0;          // measured ones
  int64_t global_batch = 0;   // samples in one step's gradient, over all workers
  int64_t total_samples = 0;  // over all workers, with warm-up; a linear schedule ends there
  int64_t drawn_batch =
      0;  // samples that all workers draw for a step; more than global_batch with spare ones
  int64_t steps_per_epoch = 0;
  int64_t epoch_samples = 0;  // in the updates of one epoch, whose last batch may be short
  int64_t data_count = 0;     // samples in the data
  int predictions = 1;        // tokens of a text of which --batch gives the number; else 1
  int64_t total_steps() const { return warmup_steps + steps; }
  // In the updates of all steps before `step`.
  int64_t SamplesBefore(int64_t step) const;
  // In the first `updates`, of which each step has `per_step`. If that is above 1, the samples of a short
  // last batch are distributed evenly among the step's updates.
  int64_t SamplesIn(int64_t updates, int per_step) const;
};

// The budget is the first given of --steps, --samples and --epochs; default one epoch. Samples and epochs are
// rounded to the nearest whole step, at least one. InvalidArgument: short batches are dropped and the global
// batch is larger than the data.
// Of `samples` samples with `predictions` each (SampleSpec::labels).
absl::StatusOr<StepPlan> PlanSteps(const TrainingOptions& options, int64_t samples, int world_size,
                                   int predictions = 1);

struct UpdatePlan {
  OptimizerConfig optimizer;
  LrSchedule schedule;
  std::string stale_by;  // the strategy or program whose gradients are of older weights; empty: none are
};

// Default of --lr: with momentum the model's rate; for plain SGD and with stale gradients (default momentum
// 0) the model's asynchronous rate times 1 - momentum; for Adam .001.
absl::StatusOr<UpdatePlan> PlanUpdates(const TrainingOptions& options, const StrategyRow& strategy,
                                       const ModelRow& model, const StepPlan& steps);

// The first bucket is smaller, as in PyTorch, so that communication begins early.
inline BucketSizes BucketSizesOf(const TrainingOptions& options) {
  return {.first_mb = std::min(1.0, options.bucket_mb), .others_mb = options.bucket_mb};
}

// InvalidArgument: `device` does not support --precision or --cuda_graph.
absl::Status CheckDevice(const TrainingOptions& options, const Device& device);

// InvalidArgument: `strategy` does not support the flags or `world_size` replicas; with --cp several workers
// of each take part in it.
absl::Status CheckStrategy(const TrainingOptions& options, const StrategyRow& strategy, int world_size);

// The same for the layout of so many workers (--pp, --tp): CheckPipelineFlags, too.
absl::Status CheckLayout(const TrainingOptions& options, const StrategyRow& strategy, int workers);

// InvalidArgument: --sync_batch_norm cannot be combined with `strategy` or other flags, or the model with
// this layout has no batch normalization.
absl::Status CheckSyncBatchNorm(const TrainingOptions& options, const StrategyRow& strategy);
absl::Status CheckSyncBatchNorm(const TrainingOptions& options, const ParameterLayout& layout);

// InvalidArgument: the model with this layout has tables, whose rows `strategy`, the optimizer or a flag does
// not support.
absl::Status CheckTables(const TrainingOptions& options, const StrategyRow& strategy,
                         const OptimizerConfig& optimizer, const ParameterLayout& layout);

// Which statistics evaluation uses, in one line, for a model with batch normalization.
std::string StatisticsNote(const TrainingOptions& options, const StrategyRow& strategy, int world_size);

// What --samples was rounded to, in one line; empty if it is a whole number of steps or not given.
std::string RoundingNote(const TrainingOptions& options, const StepPlan& steps);

// Whether a worker that has read `version` is done. Asynchronous workers share the steps: faster ones make
// more, so that no worker continues without others' updates. While all run, each other worker has one
// gradient in flight. So the first to read version T - N + 1 stops, the N - 1 gradients in flight stop the
// others, and there are exactly T = N * `total_steps` updates.
bool SharedStepsAreOver(int64_t version, int workers, int64_t total_steps);

// Settings that are valid but probably harmful, one line each.
std::vector<std::string> PlanWarnings(const UpdatePlan& updates);

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
