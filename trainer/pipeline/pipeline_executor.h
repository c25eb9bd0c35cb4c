// Executes the nodes of this rank of a program with several ranks: gpipe, 1f1b, interleaved, zb-h1,
// pipedream.
//
// Each channel end is a lane of its own, so a message does not keep computation or other messages from going
// on, or all are one lane (--copy_streams 1); what waits for what is the walk's (trainer/programs), and what
// slots need (pipeline_plan.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "ring_worker/groups/channel.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/message_times.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/pipeline_plan.h"
#include "trainer/pipeline/replica_exchange.h"
#include "trainer/pipeline/stage_updates.h"
#include "trainer/pipeline/unit_passes.h"
#include "trainer/programs/program_rows.h"
#include "trainer/strategies/capabilities.h"

namespace psring {

// How many micro-batches a rank at `place` has in flight in a step of `program`, which is its memory.
// `one_copy_stream`: see LowerOptions.
absl::StatusOr<size_t> SlotsOf(const NamedProgram& program, const PipelinePlace& place, int micro_batches,
                               bool one_copy_stream = false);

// Used by the training thread.
class PipelineExecutor {
 public:
  // Borrowed.
  struct Parts {
    Device& device;
    Stream& compute;
    Ops& ops;
    Model& model;
    const ModelPart& part;  // without its model
    const NamedProgram& program;
    const SampleSpec& samples;
    int micro_batches;
    int max_batch;
    Keep keep;  // kForWeights if the program divides backward
    uint64_t seed;
    const Strategy& strategy;
    const std::vector<Bucket>& buckets;  // cover the gradient; none has elements of two stages
    Span weights, gradient, buffers;
    // By boundary, where this rank is an end: the channel for activations and that for gradients.
    std::map<int, std::pair<Channel*, Channel*>> channels;
    ProcessGroup* tied;            // null: this rank has no tied tensors, or all stages that share them
    bool one_copy_stream = false;  // the channels share a lane
    // If the strategy has only shards of the gradient: `gradient` and `weights` are its memory. Gathered
    // weights stay until the end of the step (--reshard never).
    const ShardPlan* shards = nullptr;
    bool keep_weights = false;
    int64_t warmup_steps = 0;  // see MessageTimes
  };
  static absl::StatusOr<std::unique_ptr<PipelineExecutor>> Create(const Parts& parts);
  // Waits for the lanes and the compute stream, whose work uses the slots. After an error the lanes' groups
  // must have been aborted.
  ~PipelineExecutor();

  // Enqueues, between the strategy's BeginStep and FinishStep: the sum of the gradients of the micro-batches
  // of `drawn`, samples of `data`. Each bucket goes to the strategy, which updates it, when its gradient is
  // complete; for clipping, UpdateRule::sum_over_stages is the program's norm. Without a flush it makes the
  // calls of BeginStep and FinishStep itself, for each update, and TakeReport returns what was reported.
  absl::Status Run(const Dataset& data, const SampledStep& drawn, const StepInfo& info);
  // Whether weights are updated at the end of a step only; else how often.
  bool flushes() const { return updates_ == nullptr; }
  int updates() const { return flushes() ? 1 : updates_->updates(); }
  absl::StatusOr<StepReport> TakeReport() { return updates_->TakeReport(); }
  // Waits for the messages of the last Run.
  absl::Status Finish();

  // Forward passes over `data` by all positions of a replica; if weights are sharded, of all replicas, of
  // which one `computes`. `on_batches`: called with the samples so far.
  absl::Status Evaluate(const Dataset& data, int batch, Span weights, Span buffers, bool computes,
                        const std::function<void(int64_t samples)>& on_batches);

  // Of the last Run or Evaluate, after the compute stream was synchronized; 0 unless this rank has the last
  // stage.
  BatchScore score() const { return slots_[0].memory.downloaded_score(); }

  // When the last Run computed and waited.
  //
  // Waiting for a message is `exposed` for the time that its bytes take (message_times.h). What is before it,
  // in which the other stage had nothing to send yet, is in `bubbles`, and so is waiting for a free slot.
  struct StepTimes {
    std::vector<TimedAction> passes;    // of a stage and micro-batch
    std::vector<TimedAction> messages;  // begin and end of the bytes
    std::vector<NodeTime> bubbles, exposed;
    int64_t compute_ns = 0;
  };
  // After Finish and when the compute stream was synchronized.
  StepTimes Times() const;
  // Collective over the ranks of the replica, after the same Finish of all: see MessageTimes.
  absl::Status ShareMessageTimes(ReplicaExchange& replica);

  Traffic traffic() const;
  // Of the memory of all slots; and of gradients beside Parts::gradient.
  size_t slot_bytes() const;
  size_t gradient_bytes() const { return micro_gradient_.bytes(); }
  // See Executor.
  int64_t GatheredElements(const std::vector<bool>& once) const;
  // Of versions of the weights beside Parts::weights.
  size_t version_bytes() const { return flushes() ? 0 : updates_->bytes(); }

 private:
  struct Slot {
    Activations activations;
    BatchMemory memory;
    // Of the micro-batch that has it; -1: none yet.
    int micro_batch = -1;
    Batch batch;
    std::vector<uint64_t> sample_seeds;
  };
  // What one execution of a plan works on.
  struct Pass {
    const Dataset* data;
    const std::vector<std::vector<int64_t>>* batches;
    int64_t epoch;
    ModelState state;
  };
  explicit PipelineExecutor(const Parts& parts);

  absl::Status MakePlans();
  absl::Status MakeUpdates();
  absl::StatusOr<ModelState> StateFor(const StepAction& action, const Pass& pass) const;
  absl::Status UpdateWithoutFlush(const StepAction& action);
  absl::Status Execute(const PipelinePlan& plan, const Pass& pass);
  absl::Status Do(const PipelineNode& node, const Pass& pass);
  Slot& SlotFor(const PipelineNode& node, const Pass& pass);
  absl::Status Load(const PipelineNode& node, const Pass& pass);
  absl::Status Forward(const StepAction& action, Slot& slot, ModelState state);
  absl::Status Backward(const StepAction& action, Slot& slot, ModelState state);
  absl::Status Transfer(const StepAction& action, Slot& slot);
  absl::Status ReduceTied();

  const PipelinePlace& place() const { return parts_.part.place; }
  // Of a message: twice its boundary, and 1 more for gradients.
  static size_t LinkOf(const StepAction& action);
  size_t MessageOf(const StepAction& action) const;
  int SamplesOf(const StepAction& action) const { return sizes_[static_cast<size_t>(action.micro_batch)]; }
  Channel& ChannelOf(const StepAction& action) const;
  Stream& LaneFor(const StepAction& action) const;
  size_t UnitOf(const StepAction& action) const {
    return passes_.units().stages[place().ChunkOf(action.stage)] + static_cast<size_t>(action.unit);
  }
  absl::Status Unshard(const PipelineNode& node);

  const Parts parts_;
  Model& model_;
  UnitPasses passes_;
  PipelinePlan step_, evaluation_;
  Buffer micro_gradient_;  // of one micro-batch after the first
  int64_t begin_ns_ = 0;   // of the last Run on the compute stream, after what a strategy enqueued before it
  // Of the last execution; lanes write the times.
  std::vector<NodeTime> times_;
  std::vector<Event> done_;
  std::vector<int> sizes_;                                  // by micro-batch, in samples
  std::set<std::pair<size_t, BackwardPart>> has_gradient_;  // of units, in the sum
  MessageTimes message_times_;
  std::unique_ptr<StageUpdates> updates_;  // null: the program has a flush
  std::unique_ptr<Stream> tied_lane_;
  std::vector<Slot> slots_;
};

}  // namespace psring
