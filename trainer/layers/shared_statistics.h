// Batch statistics of all ranks (--sync_batch_norm), as PyTorch's SyncBatchNorm has them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/device/device.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// In host memory. Every rank makes the same calls in the same order, on one stream, with batches of equal
// size. Results are bit-identical on all ranks. Errors are those of the group's calls.
class SharedStatistics {
 public:
  // `group` is used only by this object, because gradients are summed at the same time; it outlives it.
  // `channels`: the most of a layer.
  SharedStatistics(ProcessGroup& group, size_t channels)
      : group_(group), gathered_(2 * channels * static_cast<size_t>(group.size())) {}

  int ranks() const { return group_.size(); }

  // Replaces [2][channels], the means and variances of this rank's rows, by those of all rows.
  absl::Status Combine(Span statistics, Stream& stream);
  // Replaces values by their means over the ranks.
  absl::Status Average(Span values, Stream& stream);

 private:
  ProcessGroup& group_;
  std::vector<float> gathered_;
};

}  // namespace psring
