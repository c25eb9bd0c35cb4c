// The memory of the ranks of a layout before any of them starts, and the layouts of as many ranks that need
// less.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "common/options/training_options.h"
#include "trainer/data/dataset.h"
#include "trainer/memory/memory_need.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/programs/program_rows.h"
#include "trainer/strategies/table/shard_plan.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

// How a rank that has only shards of the gradient (zero2), or also of the weights (fsdp), keeps them: one
// bucket per unit. Without sharded gradients, or with one rank, all is empty.
struct UnitShards {
  std::vector<Bucket> buckets;
  std::vector<ShardedBucket> sharded;
  ShardPlan plan;
};
// Of the ranks with one copy of the state.
struct ShardPlace {
  int rank = 0, ranks = 1;
};
// The gradients of the units in flight need one block if memory is what counts, and two to compute the next
// unit while one is reduced. Those of tensors that two stages of a pipeline share are kept whole for the sum
// of both. `part`: of a pipeline; else null. `divides_backward`: so does its program.
UnitShards PlanUnitShards(const Model& model, const StrategyRow& strategy, const TrainingOptions& options,
                          const ShardPlace& place, const ModelPart* part, bool divides_backward);

// Of a rank of `shard_ranks` with one copy of the state. `optimizer` must outlive the result.
StateOnRank StateOf(const StrategyRow& strategy, const OptimizerConfig& optimizer, int shard_ranks,
                    const ShardPlan& shards);
// Adds what a pipeline's rank has: micro-batches in flight, and versions of weights.
absl::Status AddStages(const NamedProgram& program, const PipelinePlace& place,
                       const TrainingOptions& options, StateOnRank& state);

// A training on `workers` ranks.
struct MemoryQuestion {
  const ModelRow& row;
  const SampleSpec& samples;
  const OptimizerConfig& optimizer;
  int workers;
  int max_batch;
  Ops& ops;
  Device& device;
};

// Of the rank that needs most. Without --cuts, stages have equally many layers; training balances their
// times. Errors are those of CutModel: the model has no such stages or shares.
absl::StatusOr<MemoryNeed> MostNeeded(const TrainingOptions& options, const StrategyRow& strategy,
                                      const MemoryQuestion& question);

// The payload that a rank sends in a step, on average over the ranks, in bytes: gradients and weights to its
// replicas or to servers (of fsdp the most: StrategyRow::SentPart), activations and their gradients to other
// stages, and what layers send to the ranks that divide matrices, tokens and sequences. Not the loss, the
// norm, and statistics of BatchNorm. Stages are those of MostNeeded, whose errors it has.
absl::StatusOr<double> SentInStep(const TrainingOptions& options, const StrategyRow& strategy,
                                  const MemoryQuestion& question);

// With the global batch of `options`, the layouts of the workers, in the order of SentInStep, at most three,
// of which every rank needs at most `bytes`: with zero1, zero2 or fsdp, stages, divided matrices, more ranks
// that divide sequences (of which each keeps at least 1,024 positions), or several of these. `check`: whether
// a training with these options would be accepted. In flags, such as "--strategy fsdp (12.0 MiB per worker)"
// or "--pp 2 --micro_batches 2 (15.5 MiB per worker, ...)".
std::vector<std::string> LayoutsThatFit(
    const TrainingOptions& options, const MemoryQuestion& question, size_t bytes,
    const std::function<absl::Status(const TrainingOptions&, const StrategyRow&)>& check);

// CheckMemory of each of `shares`, which `need` has; an error names LayoutsThatFit.
absl::Status CheckShares(
    const MemoryNeed& need, const std::vector<MemoryShare>& shares, const TrainingOptions& options,
    const MemoryQuestion& question,
    const std::function<absl::Status(const TrainingOptions&, const StrategyRow&)>& check);

}  // namespace psring
