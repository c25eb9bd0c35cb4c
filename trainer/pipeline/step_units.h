// A model as units, for communication that overlaps with the backward pass of earlier layers. Pure.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/parameters.h"
#include "trainer/models/model.h"

namespace psring {

struct StepUnits {
  std::vector<LayerRange> layers;  // by unit, in the order of forward
  // By unit: the buckets [first, second) that are complete once backward has passed it.
  std::vector<std::pair<size_t, size_t>> buckets;
  std::vector<size_t> stages;  // the first unit of each stage

  size_t units_of(size_t stage) const { return EndOf(stage) - stages[stage]; }
  // Of units numbered from 0 in the stage: those that complete a bucket, the last first.
  std::vector<int> BucketEnds(size_t stage) const;

 private:
  size_t EndOf(size_t stage) const { return stage + 1 < stages.size() ? stages[stage + 1] : layers.size(); }
};

// A unit begins with each layer with which backward completes a bucket, if those before it are complete too:
// buckets are passed on in order; and with the first layer of each of `stages`, which are consecutive and
// all layers; empty: one stage. `complete`: Model::CompleteAfterLayers; `buckets` cover the gradient.
StepUnits PlanUnits(const std::vector<ReadyRange>& complete, const std::vector<Bucket>& buckets,
                    const std::vector<LayerRange>& stages = {});

// One bucket for each unit of a rank that has only shards of gradients: of the layers between two cut points
// of the model, such as half a transformer block; with `recompute` not within layers that are computed again
// together. Without `cut_points` layers are units of their own. A unit whose parameters are not adjacent
// grows until they are. In the order in which backward completes them.
std::vector<Bucket> UnitBuckets(const Model& model, const std::vector<size_t>& cut_points, bool recompute);

// Buckets [first, second).
using BucketRange = std::pair<size_t, size_t>;

// By layer: the buckets with its parameters, in the order of elements; empty: it has none. `parameters`:
// Model::LayerParameters.
std::vector<BucketRange> BucketsOfLayers(const std::vector<ReadyRange>& parameters,
                                         const std::vector<Bucket>& buckets);

// By bucket: whether it is used beside the bucket of the unit that is computed: layers of other units have
// parameters in it, such as a tied tensor; or its unit has several buckets.
std::vector<bool> UsedBesideOthers(const StepUnits& units, const std::vector<BucketRange>& of_layers,
                                   size_t buckets);

// By bucket: whether its unit has a bucket with elements of `tied`, tensors that two stages share.
std::vector<bool> WithTied(const StepUnits& units, const std::vector<Bucket>& buckets,
                           const std::vector<ReadyRange>& tied);

// `buckets` without one that has elements of two stages, so that a stage's gradient need not wait for
// another's; in the order in which backward, the last stage first, completes them. `alone`: tensors, in
// increasing order, that get buckets of their own.
std::vector<Bucket> CutBuckets(const std::vector<Bucket>& buckets, const std::vector<ReadyRange>& complete,
                               const std::vector<LayerRange>& stages,
                               const std::vector<ReadyRange>& alone = {});

}  // namespace psring
