#include "trainer/step/bucket_pipeline.h"

#include <algorithm>

#include "common/base/check.h"

namespace psring {

void BucketPipeline::BeginStep() {
  next_ = 0;
  order_.clear();
  missing_.clear();
  for (const Bucket& bucket : buckets_) missing_.push_back(bucket.count);
}

void BucketPipeline::Ready(ReadyRange range) {
  order_.push_back(range);
  const size_t end = range.first + range.count;
  for (size_t b = next_; b < buckets_.size(); ++b) {
    const size_t from = std::max(buckets_[b].first, range.first);
    const size_t to = std::min(buckets_[b].first + buckets_[b].count, end);
    if (from >= to) continue;
    PSRING_CHECK(to - from <= missing_[b]);
    missing_[b] -= to - from;
  }
  if (all_ready() || missing_[next_] > 0) return;
  // One event for all buckets that end with this layer.
  const size_t first = next_;
  while (next_ < buckets_.size() && missing_[next_] == 0) ++next_;
  strategy_.GradientReady(absl::MakeConstSpan(buckets_).subspan(first, next_ - first), compute_.Record());
}

}  // namespace psring
