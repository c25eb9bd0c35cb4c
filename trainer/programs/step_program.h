// A training step as data: what each rank computes, sends and receives, in order. A row of program_rows.h
// makes the computation of whole stages, LowerProgram adds everything else, and WalkProgram proves, times and
// counts the result. Pure.
//
// *stage*: consecutive layers on one rank; a rank may have several. *unit*: consecutive layers of a stage.
// *micro-batch*: the samples that pass the stages together; a step adds the gradients of all of them.
// *version* of a stage's weights: the number of the step's updates in them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace psring {

enum class StepKind : uint8_t {
  kLoad,  // the micro-batch, to the device
  kForward,
  kBackward,        // both of the following
  kBackwardInput,   // the gradient of the unit's input
  kBackwardWeight,  // the gradient of its weights
  kRecompute,       // activations that forward did not keep
  kSendActivation,  // to the next stage
  kReceiveActivation,
  kSendGradient,  // to the stage before
  kReceiveGradient,
  kUnshard,         // gather a unit's weights from the replicas
  kReshard,         // release them
  kReduceGradient,  // of the bucket that ends with the unit, over the replicas
  kReduceTied,      // of a tensor that two stages share, over these stages
  kNorm,            // of the gradient of all stages
  kUpdate,          // the weights of the bucket that ends with the unit
};

struct StepAction {
  StepKind kind;
  int stage = 0;
  int unit = -1;         // -1: the whole stage, or none
  int micro_batch = -1;  // -1: none
  bool operator==(const StepAction&) const = default;
};

// Of one replica; all replicas do the same.
struct StepProgram {
  std::string name;
  int ranks = 1, micro_batches = 1;
  std::vector<int> rank_of;                      // by stage
  std::vector<std::vector<StepAction>> actions;  // by rank
  std::vector<int> weightless = {};              // by stage: its first units, which have no weights; empty: 0
  bool one_copy_stream = false;                  // all messages of a rank are on one lane, in this order
  // 0: weights are updated at the end of the step, when no micro-batch is in flight (a flush). Else without a
  // flush: each stage updates its weights after so many micro-batches, and at the end; a micro-batch's
  // backward reads the version that its forward has read. That is the newest one, or with `one_late` on all
  // stages the one before the update before that of the micro-batch, of which two are kept.
  int update_every = 0;
  bool one_late = false;

  int stages() const { return static_cast<int>(rank_of.size()); }
  bool flushes() const { return update_every == 0; }
  // Of a step without a flush: how many updates it has, and the one (from 0) with a micro-batch's gradient.
  int updates() const { return UpdateOf(micro_batches - 1) + 1; }
  int UpdateOf(int micro_batch) const { return micro_batch / update_every; }
  bool EndsUpdate(int micro_batch) const {
    return micro_batch + 1 == micro_batches || UpdateOf(micro_batch) != UpdateOf(micro_batch + 1);
  }
  // Whether the stages exchange activations by messages.
  bool sends_after(int stage) const { return stage + 1 < stages() && rank_of[stage] != rank_of[stage + 1]; }
};

// "2F0": forward of stage 2 with micro-batch 0; "2.1F0": of its unit 1; "2SEND_F0", "0REDUCE_GRAD". The names
// are those of PyTorch's pipeline schedules.
std::string ToText(const StepAction& action);
// Of what ToText(action) writes; nothing for other texts.
std::optional<StepAction> StepActionOf(std::string_view text);
// A line for each rank: "rank 0: 0F0 0F1 0B0 0B1".
std::string ToText(const StepProgram& program);

}  // namespace psring
