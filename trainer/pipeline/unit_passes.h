// Forward and backward of a rank's units, of programs with one stage or several: with weights and gradients
// in flat buffers, or in the blocks of a strategy that shards them (UnitMemory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/step_units.h"
#include "trainer/programs/walk_program.h"
#include "trainer/strategies/capabilities.h"
#include "trainer/strategies/table/shard_plan.h"

namespace psring {

// Used by the training thread.
class UnitPasses {
 public:
  // Borrowed.
  struct Parts {
    Model& model;
    Stream& compute;
    Ops& ops;
    const Strategy& strategy;
    const std::vector<Bucket>& buckets;  // cover the gradient
    // Called before and after work waits for the strategy in training; null: nothing is.
    std::function<void(bool begins)> on_wait = nullptr;
    // Of a pipeline whose gradient is sharded: its plan, and the memory of AsideElements.
    const ShardPlan* shards = nullptr;
    Span aside = {};
    bool divides_backward = false;
  };
  // `stages`: see PlanUnits.
  explicit UnitPasses(const Parts& parts, const std::vector<LayerRange>& stages = {});

  // Of a batch.
  struct Pass {
    const ModelState& state;  // weights: the flat buffer
    const Batch& batch;
    Activations& activations;
  };

  const StepUnits& units() const { return units_; }
  // By layer: Model::CompleteAfterLayers, Model::EarlyElements.
  const std::vector<ReadyRange>& complete() const { return complete_; }
  const std::vector<size_t>& early() const { return early_; }
  // Gradients are in blocks, and the strategy adds them up; also the weights.
  bool in_blocks() const { return memory() != nullptr; }
  bool gathers() const { return in_blocks() && memory()->shards_weights(); }
  // By bucket: whether its weights, once gathered, stay for the rest of the step (UsedBesideOthers). Empty
  // unless it gathers.
  std::vector<bool> kept() const;

  // Enqueues the gathering of a unit's weights, which begins when `free` has happened.
  absl::Status Unshard(size_t unit, const Event& free);
  absl::Status Forward(size_t unit, const Pass& pass);
  // The gradient goes to `flat`; in_blocks to the blocks of the unit's buckets until Reduce. Of buckets that
  // are kept whole (ShardPlan::whole) it is added to that of earlier micro-batches. If the backward pass is
  // divided, what BackwardPart::kInput writes follows with the next kWeight of the unit.
  absl::Status Backward(size_t unit, const Pass& pass, Span flat);
  // Gives the unit's complete buckets to the strategy.
  void Reduce(size_t unit);
  // Of parameters of one bucket, between Backward and Reduce.
  Span GradientOf(const ReadyRange& range, Span flat) const;

  // Adds to the gatherings in `nodes` what they wait for beside StepNode::after, in a pipeline: other
  // computations that use their block. `unit_of`: of an action.
  using UnitOf = std::function<size_t(const StepAction& action)>;
  void WaitForBlocks(const UnitOf& unit_of, std::vector<StepNode>& nodes) const;
  // Elements that are gathered with these units, one after the other; of buckets with `once`, at most once.
  int64_t GatheredElements(const std::vector<size_t>& units, const std::vector<bool>& once) const;

  // The elements that a pipeline needs beside the blocks: for the gradient of a bucket, before it is added to
  // one that is kept whole, and for the sums of what BackwardPart::kInput writes.
  static size_t AsideElements(const Model& model, const std::vector<Bucket>& buckets,
                              const std::vector<bool>& whole, int micro_batches, bool divides_backward);

 private:
  // Layers of a unit that use the same buckets.
  struct LayerRun {
    LayerRange layers;
    BucketRange buckets = {};  // adjacent
    // Else they have no parameters, or weights and gradient are flat buffers.
    bool has_buckets() const { return buckets.first < buckets.second; }
  };

  UnitMemory* memory() const { return parts_.strategy.units; }
  void PlanRuns();
  std::vector<size_t> BucketsOf(size_t unit) const;
  ModelState StateOf(const LayerRun& run, const ModelState& state);
  absl::Status BackwardInBlocks(const LayerRun& run, ModelState state, const Pass& pass);
  Span BeginGradient(const LayerRun& run, const ModelState& state);
  void AddOrCopy(Span to, ConstSpan from, bool adds);
  void NoteWait(const ModelState& state, bool begins) const;
  template <typename BlockOf>
  static Span Join(const BucketRange& buckets, const BlockOf& block_of);

  const Parts parts_;
  const std::vector<ReadyRange> complete_;
  const std::vector<size_t> early_;
  const StepUnits units_;
  std::vector<std::vector<LayerRun>> runs_;  // by unit
  std::map<size_t, Span> begun_;             // gradients that backward has begun, by bucket
  // If the backward pass is divided. By layer: the sum of its early elements, and whether it has begun.
  std::vector<Span> early_sums_;
  std::vector<bool> has_early_;
};

}  // namespace psring
