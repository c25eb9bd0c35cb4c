// Executes this rank's nodes of a training step's program (trainer/programs): of single_stage, with all of
// the model, or of a pipeline's program, with its stages.
//
// One loop enqueues them. Computation is on one stream, messages are on the lanes of their channels, and
// gatherings of weights on the strategy's. What waits for what is the walk's, and what slots need
// (rank_plan.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "common/options/training_options.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/rank_plan.h"
#include "trainer/pipeline/rank_times.h"
#include "trainer/pipeline/replica_exchange.h"
#include "trainer/pipeline/stage_messages.h"
#include "trainer/pipeline/stage_updates.h"
#include "trainer/pipeline/unit_passes.h"
#include "trainer/programs/program_rows.h"
#include "trainer/step/compute_delay.h"
#include "trainer/step/recorded_pass.h"
#include "trainer/strategies/capabilities.h"

namespace psring {

// Used by the training thread.
class Executor {
 public:
  // Borrowed.
  struct Parts {
    Device& device;
    Stream& compute;
    Ops& ops;
    Model& model;
    const NamedProgram& program;
    const SampleSpec& samples;
    int max_batch;
    ComputeDelay& delay;
    const Strategy& strategy;
    const std::vector<Bucket>& buckets;  // cover the gradient; none has elements of two stages
    Span weights, gradient, buffers;
    SharedStatistics* statistics = nullptr;  // null: each rank normalizes its own batch
    TouchedRows* rows = nullptr;  // of the step, planned for its batches; null: the model has no tables
    // Of a pipeline, else null: this rank's part, without its model; its messages; if the strategy has only
    // shards of the gradient, their plan: `gradient` and `weights` are its memory.
    const ModelPart* part = nullptr;
    StageMessages* messages = nullptr;
    const ShardPlan* shards = nullptr;
  };
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const TrainingOptions& options, const Parts& parts);
  // Waits for the messages and the compute stream, whose work uses the slots. After an error the groups must
  // have been aborted.
  ~Executor();

  // Whether a step of `global_samples` samples repeats a recording.
  bool Repeats(int64_t global_samples) const;
  // Of single_stage, if the host cannot write the device's memory: uploads the samples of the next step's
  // first micro-batch while the device computes.
  bool prefetches() const { return !is_pipeline() && slots_[0].memory.uploads(); }
  absl::Status Prefetch(const Dataset& data, const std::vector<int64_t>& samples) {
    return slots_[0].memory.Prefetch(data, samples);
  }

  // Enqueues, between the strategy's BeginStep and FinishStep: the sum of the gradients of the micro-batches
  // of `drawn`, samples of `data`. Each bucket goes to the strategy, which sums and updates it, when its
  // gradient is complete; for clipping, UpdateRule::sum_over_stages is the program's norm. Without a flush it
  // makes the calls of BeginStep and FinishStep itself, for each update, and TakeReport returns what was
  // reported. `delay_step` selects the step's random delay (--jitter_ms).
  absl::Status Run(const Dataset& data, const SampledStep& drawn, const StepInfo& info, int64_t delay_step);
  // Whether weights are updated at the end of a step only.
  bool flushes() const { return updates_ == nullptr; }
  absl::StatusOr<StepReport> TakeReport() { return updates_->TakeReport(); }
  // Of a pipeline, collective over the ranks of the replica: waits for the messages of the last Run, and
  // shares their times (StageMessages).
  absl::Status FinishMessages(ReplicaExchange& replica);

  // Forward passes over `data` by all positions of a replica; if weights are sharded, of all replicas, of
  // which one `computes`. `weights`: flat, unless sharded. `rows`: of a model with tables, planned for the
  // batches of EvaluationBatches with `batch`, with values; else null. `on_batches`: called with the
  // predictions so far. The score is on the rank with the last stage.
  absl::Status Evaluate(const Dataset& data, int batch, Span weights, TouchedRows* rows, bool computes,
                        const std::function<void(int64_t predictions)>& on_batches);

  // Of the last Run or Evaluate, after the compute stream was synchronized; 0 unless this rank has the last
  // stage.
  BatchScore score() const { return slots_[0].memory.downloaded_score(); }

  // Of the last Run, after FinishMessages and when the compute stream was synchronized. Of single_stage,
  // units are timed in the first 100 steps without --cuda_graph.
  RankTimes Times() const;
  const std::vector<PlannedNode>& nodes() const { return plans_.step.nodes; }

  // Of the memory of all slots; and of gradients beside Parts::gradient.
  size_t slot_bytes() const;
  size_t gradient_bytes() const { return worker_gradient_.bytes() + micro_gradient_.bytes(); }
  // Of versions of the weights beside Parts::weights.
  size_t version_bytes() const { return flushes() ? 0 : updates_->bytes(); }
  // That a step gathers; of buckets with `once`, at most once.
  int64_t GatheredElements(const std::vector<bool>& once) const;

 private:
  struct Slot {
    Activations activations;
    BatchMemory memory;
    // Of the micro-batch that has it; -1: none yet.
    int micro_batch = -1;
    Batch batch;
    std::vector<uint64_t> sample_seeds;  // empty without --dropout
  };
  // What one execution of a plan works on.
  struct Pass {
    const RankPlan& plan;
    const Dataset& data;
    const std::vector<std::vector<int64_t>>& batches;
    ModelState state;
    int64_t epoch = 0;
    size_t first_batch = 0;  // of `batches`, in state.rows
  };
  // The nodes of a batch of single_stage, from one index to the next, and when they ran.
  struct BatchNodes {
    size_t load = 0, forward = 0, backward = 0, end = 0;
  };
  struct BatchTimes {
    int64_t forward_ns = 0, backward_ns = 0, end_ns = 0;
  };
  // A recording: of a step's batch by its index and the step's global samples, which determine the samples of
  // each rank's batch; else of a pass by the samples of its batch, of backward also by the batch's index,
  // which determines where its gradient goes.
  enum class Part : uint8_t { kStep, kForward, kBackward };
  using Key = std::tuple<Part, size_t, int64_t>;

  Executor(const TrainingOptions& options, const Parts& parts);

  absl::Status MakePlans();
  void FindBatches();
  absl::Status Allocate();

  void Begin(const Pass& pass);
  absl::Status Enqueue(const Pass& pass, size_t first, size_t end, const RecordedPass::Cut& reduce);
  absl::Status RunBatch(const Pass& pass, size_t batch, const StepInfo& info, int64_t delay_step);
  absl::Status RunPasses(const Pass& pass, size_t batch, int64_t delay_step);
  absl::Status RunPass(const Pass& pass, const Key& key, size_t first, size_t end);

  absl::Status Do(const PlannedNode& node, const Pass& pass, const RecordedPass::Cut& reduce);
  Slot& SlotFor(const PlannedNode& node, const Pass& pass);
  absl::StatusOr<ModelState> StateFor(const StepAction& action, const Slot& slot, const Pass& pass) const;
  absl::Status Unshard(const PlannedNode& node);
  absl::Status Load(const StepAction& action, Slot& slot, const Pass& pass);
  absl::Status Forward(const StepAction& action, Slot& slot, const ModelState& state);
  absl::Status Backward(const PlannedNode& node, Slot& slot, const ModelState& state);
  absl::Status ReduceTied();
  absl::Status UpdateWithoutFlush(const StepAction& action);

  bool is_pipeline() const { return parts_.messages != nullptr; }
  // Of a step; those of a worker, which several may stand for, are --micro_batches.
  int micro_batches() const { return options_.reference_workers * options_.micro_batches; }
  bool records_steps() const { return parts_.strategy.recording != nullptr; }
  bool IsTimed(StepKind kind) const;
  int SamplesOf(const StepAction& action) const { return sizes_[static_cast<size_t>(action.micro_batch)]; }
  Stream& LaneFor(const StepAction& action) const;
  size_t UnitOf(const StepAction& action) const {
    return passes_.units().stages[place_.ChunkOf(action.stage)] + static_cast<size_t>(action.unit);
  }

  const TrainingOptions& options_;
  const Parts parts_;
  const PipelinePlace place_;
  UnitPasses passes_;
  const RecordedPass::Cut reduce_;  // gives a unit's buckets to the strategy
  RankPlans plans_;
  std::vector<BatchNodes> batches_;         // of plans_.step; of a pipeline none
  Buffer worker_gradient_;                  // of one of the workers that micro-batches represent
  Buffer micro_gradient_;                   // of one of several accumulated micro-batches
  std::unique_ptr<StageUpdates> updates_;   // null: the program has a flush
  std::map<Key, RecordedPass> recordings_;  // with --cuda_graph: of steps if the strategy records them
  int steps_in_full_ = 100;                 // of single_stage, still to come: all computations are timed
  // Of the last execution. Lanes write the times, each at a fixed address. `begin_ns_`: on the compute
  // stream, after what a strategy enqueued before it.
  int64_t begin_ns_ = 0;
  std::vector<NodeTime> times_;
  std::vector<BatchTimes> batch_times_;
  std::vector<Event> done_;
  std::vector<int> sizes_;  // by micro-batch, in samples
  std::vector<Slot> slots_;
};

}  // namespace psring
