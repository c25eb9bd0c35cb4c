// Memory for exchanges on their way: a *window* of so many bytes, which all workers share however many there
// are, and buffers in it that are used again and again (memory that is kept beats memory that is mapped per
// push).
//
// A *share* is room in the window; buffers are taken within one. Whoever finds no room for what it needs
// stands in line, and is called when its turn has come. First come, first served: somebody who needs much is
// not overtaken for ever by those who need little.
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

// Thread-safe. Owned by shared_ptr; a share or buffer that is still out keeps its pool alive. The device
// outlives all.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // kPinned: of the host, for the device's copies (AllocateOnHost).
  enum class Memory { kOfDevice, kPinned };
  StagingPool(Device& device, size_t window, Memory memory = Memory::kOfDevice)
      : device_(device), memory_(memory), window_(window) {}

  // Room in the window, until its last owner lets go of it, on whatever thread.
  using Share = std::shared_ptr<const void>;

  // For `who`; `bytes` are at most the window. Null: not now. Then `who` stands in line; AwaitCall names it
  // once it may ask again, and nobody gets anything before it.
  Share Reserve(int who, size_t bytes);
  // Also beyond the window: for those that cannot wait.
  Share ReserveAnyway(size_t bytes);
  void LeaveLine(int who);

  // A buffer within `share` (of this pool, or of one whose window stands for both), which lives as long as
  // it. Contents are whatever was left in it. No more is ever
  // allocated, idle buffers included, than the window or what is reserved.
  absl::StatusOr<std::shared_ptr<Buffer>> Take(Share share, size_t bytes);

  // `buffer`, for somebody who reads it: until this is let go of, `reader` is among the readers().
  std::shared_ptr<const void> Lend(std::shared_ptr<const void> buffer, int reader);

  // The next of those in line whose turn has come, once each; waits for one. Nothing after Close.
  std::optional<int> AwaitCall();
  void Close();

  size_t window() const { return window_; }
  std::vector<int> in_line() const;
  std::vector<int> readers() const;
  size_t peak_bytes() const;  // the most that was ever allocated at once

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
  std::deque<Waiting> line_ ABSL_GUARDED_BY(mutex_);
  std::multimap<size_t, Buffer> idle_ ABSL_GUARDED_BY(mutex_);  // by bytes
  std::map<int, int> readers_ ABSL_GUARDED_BY(mutex_);          // how many buffers each reads
};

}  // namespace psring
