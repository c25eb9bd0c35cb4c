// Between the model, which finishes layers, and the strategy, which synchronises buckets.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/parameters.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Hands the buckets to the strategy, in their order, each as soon as backward has finished all of its layers
// (and those of the buckets before it), with an event of the compute stream, so that its communication
// overlaps with the backward pass of the layers before it. Used by the training thread.
class BucketPipeline {
 public:
  // `buckets` cover the gradient; between two steps they may be others. All are borrowed.
  BucketPipeline(const std::vector<Bucket>& buckets, Stream& compute, SyncStrategy& strategy)
      : buckets_(buckets), compute_(compute), strategy_(strategy) {}

  void BeginStep();

  // These elements of the gradient are complete once the compute stream gets here; each comes once a step.
  void Ready(ReadyRange range);

  bool all_ready() const { return next_ == buckets_.size(); }
  // What came in this step, in its order.
  const std::vector<ReadyRange>& order() const { return order_; }

 private:
  const std::vector<Bucket>& buckets_;
  Stream& compute_;
  SyncStrategy& strategy_;
  std::vector<size_t> missing_;  // elements, by bucket
  size_t next_ = 0;              // the first that was not handed over
  std::vector<ReadyRange> order_;
};

}  // namespace psring
