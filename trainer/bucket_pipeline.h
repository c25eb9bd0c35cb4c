// Between the model, which finishes layers, and the strategy, which synchronises buckets.
#pragma once

#include <cstddef>
#include <vector>

#include "common/parameters.h"
#include "trainer/sync_strategy.h"

namespace psring {

// Hands each bucket to the strategy as soon as backward has finished the last of its layers, with an event of
// the compute stream, so that its communication overlaps with the backward pass of the layers before it.
// Used by the training thread.
class BucketPipeline {
 public:
  // `buckets` as PlanBuckets made them; all are borrowed.
  BucketPipeline(const std::vector<Bucket>& buckets, Stream& compute, SyncStrategy& strategy)
      : buckets_(buckets), compute_(compute), strategy_(strategy) {}

  void BeginStep() { next_ = 0; }

  // All elements >= first of the gradient are complete once the compute stream gets here.
  void LayerDone(size_t first);

  bool all_ready() const { return next_ == buckets_.size(); }

 private:
  const std::vector<Bucket>& buckets_;
  Stream& compute_;
  SyncStrategy& strategy_;
  size_t next_ = 0;
};

}  // namespace psring
