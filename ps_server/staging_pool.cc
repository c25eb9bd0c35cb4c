#include "ps_server/staging_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace psring {

absl::StatusOr<std::shared_ptr<Buffer>> StagingPool::Take() {
  auto buffer = std::make_unique<Buffer>();
  bool allocate = false;
  {
    MutexLock lock(mutex_);
    if (out_ == limit_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("all ", limit_, " staging buffers are in use: replies are not being read"));
    }
    ++out_;
    allocate = free_.empty();
    if (!allocate) {
      *buffer = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (allocate) {
    absl::StatusOr<Buffer> fresh = device_.Allocate(bytes_);
    if (!fresh.ok()) {
      MutexLock lock(mutex_);
      --out_;
      return fresh.status();
    }
    *buffer = std::move(fresh).value();
  }
  return std::shared_ptr<Buffer>(buffer.release(), [pool = shared_from_this()](Buffer* used) {
    pool->Return(std::move(*used));
    delete used;
  });
}

void StagingPool::Return(Buffer buffer) {
  MutexLock lock(mutex_);
  --out_;
  free_.push_back(std::move(buffer));
}

}  // namespace psring
