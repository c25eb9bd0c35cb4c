// Buffers of one size that are used again and again: memory that is kept beats memory that is mapped per
// push.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device.h"
#include "common/mutex.h"

namespace psring {

// Thread-safe. Owned by shared_ptr; a buffer that is still out keeps its pool alive. The device outlives all.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // Hands out at most `limit` buffers of `bytes` at a time, made when first needed.
  StagingPool(Device& device, size_t bytes, int limit) : device_(device), bytes_(bytes), limit_(limit) {}

  // Returns to the pool with its last owner, from whatever thread. Contents are whatever was left in it.
  // ResourceExhausted where all are out.
  absl::StatusOr<std::shared_ptr<Buffer>> Take();

 private:
  void Return(Buffer buffer);

  Device& device_;
  const size_t bytes_;
  const int limit_;
  Mutex mutex_;
  int out_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Buffer> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
