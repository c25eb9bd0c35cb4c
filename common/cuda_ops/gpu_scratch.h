// Device memory for intermediate results between launches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/device/device.h"

namespace psring {

// Grows during the first calls; later steps allocate nothing.
class GpuScratch {
 public:
  explicit GpuScratch(Device& device) : device_(device) {}

  // At least `bytes`; earlier contents are lost.
  absl::StatusOr<void*> Reserve(size_t bytes) {
    if (bytes > buffer_.bytes()) {
      // If there is no memory, the smaller one remains usable.
      PSRING_ASSIGN_OR_RETURN(Buffer larger, device_.Allocate(std::max(bytes, 2 * buffer_.bytes())));
      // Queued work may still use the smaller one. Sizes at least double, so there are few of these.
      if (buffer_.bytes() > 0) retired_.push_back(std::move(buffer_));
      buffer_ = std::move(larger);
    }
    return buffer_.data();
  }
  size_t bytes() const { return buffer_.bytes(); }

 private:
  Device& device_;
  Buffer buffer_;
  std::vector<Buffer> retired_;
};

}  // namespace psring
