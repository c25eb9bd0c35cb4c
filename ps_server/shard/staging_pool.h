// Memory for exchanges in transit: a *window* of fixed size, shared by all workers, and buffers in it that
// are reused (which is faster than mapping memory for each push).
//
// A *share* is part of the window; buffers are taken within one. If there is no memory for a share, the
// worker waits in a queue, first come, first served, so that small requests do not delay a large one forever.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/device/device.h"

namespace psring {

// Thread-safe. Owned by shared_ptr; shares and buffers keep their pool alive. The device outlives all.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // kPinned: host memory for the device's copies (AllocateOnHost).
  enum class Memory { kOfDevice, kPinned };
  StagingPool(Device& device, size_t window, Memory memory = Memory::kOfDevice)
      : device_(device), memory_(memory), window_(window) {}

  // Part of the window until its last owner releases it, on any thread.
  using Share = std::shared_ptr<const void>;

  // `bytes`: at most the window. Null: no memory now; `who` is queued, AwaitCall returns it when it may try
  // again, and nobody behind it in the queue gets a share before it.
  Share Reserve(int who, size_t bytes);
  // May exceed the window: for callers that must not wait.
  Share ReserveAnyway(size_t bytes);
  void LeaveQueue(int who);

  // A buffer within `share` (of this pool, or of another with the same shares), which it keeps. Its contents
  // are undefined. Allocated memory, idle buffers included, does not exceed the window or what is reserved.
  absl::StatusOr<std::shared_ptr<Buffer>> Take(Share share, size_t bytes);

  // Returns `buffer` for a reader; until the result is released, `reader` is among the readers().
  std::shared_ptr<const void> Lend(std::shared_ptr<const void> buffer, int reader);

  // Waits until the first in the queue may try again, and returns it once. Returns nullopt after Close.
  std::optional<int> AwaitCall();
  void Close();

  size_t window() const { return window_; }
  std::vector<int> queued() const;
  std::vector<int> readers() const;
  size_t peak_bytes() const;  // the maximum of allocated memory

 private:
  struct Waiting {
    int who;
    size_t bytes;
    bool called = false;
  };

  Share ShareLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FitsLocked(size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(size_t bytes);
  void Return(Buffer buffer);

  Device& device_;
  const Memory memory_;
  const size_t window_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  size_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;   // bytes
  size_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes, idle ones included
  size_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> queue_ ABSL_GUARDED_BY(mutex_);
  std::multimap<size_t, Buffer> idle_ ABSL_GUARDED_BY(mutex_);  // by bytes
  std::map<int, int> readers_ ABSL_GUARDED_BY(mutex_);          // how many buffers each reads
};

}  // namespace psring
