#include "trainer/bucket_pipeline.h"

namespace psring {

void BucketPipeline::LayerDone(size_t first) {
  if (next_ == buckets_.size() || buckets_[next_].first < first) return;
  // One event serves all buckets that end with this layer.
  const Event ready = compute_.Record();
  for (; next_ < buckets_.size() && buckets_[next_].first >= first; ++next_) {
    strategy_.GradientReady(buckets_[next_], ready);
  }
}

}  // namespace psring
