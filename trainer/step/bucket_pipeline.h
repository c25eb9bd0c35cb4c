// Between the model, which finishes layers, and the strategy, which synchronises buckets.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/parameters.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Passes buckets to the strategy in order, each as soon as backward has finished all of its layers and the
// buckets before it, with an event of the compute stream. Their communication then overlaps with the backward
// pass of earlier layers. Used by the training thread.
class BucketPipeline {
 public:
  // `buckets` cover the gradient; they may change between two steps. All are borrowed.
  BucketPipeline(const std::vector<Bucket>& buckets, Stream& compute, SyncStrategy& strategy)
      : buckets_(buckets), compute_(compute), strategy_(strategy) {}

  void BeginStep();

  // These elements of the gradient are complete at this point of the compute stream. Once per step and
  // element.
  void Ready(ReadyRange range);

  bool all_ready() const { return next_ == buckets_.size(); }
  // The ranges of this step, in the order of Ready.
  const std::vector<ReadyRange>& order() const { return order_; }

 private:
  const std::vector<Bucket>& buckets_;
  Stream& compute_;
  SyncStrategy& strategy_;
  std::vector<size_t> missing_;  // elements, by bucket
  size_t next_ = 0;              // the first that was not passed on
  std::vector<ReadyRange> order_;
};

}  // namespace psring
