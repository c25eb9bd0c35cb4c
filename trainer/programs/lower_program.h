// Adds to the computation of whole stages what a rank does besides: units, messages, the exchange of weights
// and gradients between replicas, the norm and the updates. Pure.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/programs/step_program.h"

namespace psring {

// The units of every stage, from the model.
struct ModelCut {
  std::vector<int> units;  // by stage, at least 1
  // By stage: the units with which backward completes a bucket; decreasing. Units before the last have no
  // weights; empty: no unit has.
  std::vector<std::vector<int>> bucket_ends;
  std::vector<std::pair<int, int>> tied;  // stage and unit of those that share a tensor; empty: none do
  // Likewise of those whose weights other units of the rank use, too. If weights are sharded, they are
  // gathered once per step.
  std::vector<std::pair<int, int>> kept = {};

  // One unit and one bucket per stage.
  static ModelCut WholeStages(int stages);
};

struct LowerOptions {
  bool norm = false;       // the update needs the norm of the whole gradient
  bool recompute = false;  // forward keeps only the input of each unit
  // Replicas hold parts of the gradient (ZeRO-2): reduce after every micro-batch, except buckets with a tied
  // tensor, whose stages add it up once.
  bool reduce_always = false;
  bool shard_weights = false;  // and of the weights (FSDP): gather a unit before its use, and release it when
                               // another one is gathered
  bool keep_weights = false;   // but once per step: they are released at its end
  // One lane for all messages of a rank. Their order is that of a step in which a pass takes twice as long as
  // a message. In the order in which the computations need and give them they could wait for each other in a
  // cycle: with 1f1b a rank would send an activation to one that sends it a gradient first.
  bool one_copy_stream = false;
};

// Every message (without one_copy_stream) and every gathering of weights stands directly before the
// computation that needs it; WalkProgram lets it begin with the computation before that. A program without a
// flush reduces and updates a stage's buckets after the backward pass of an update's last micro-batch;
// before, it adds up a tied tensor, for which the last stage waits for the first. InvalidArgument: `cut` does
// not fit the stages, or an option needs a flush.
absl::StatusOr<StepProgram> LowerProgram(const StepProgram& compute, const ModelCut& cut,
                                         const LowerOptions& options = {});

}  // namespace psring
