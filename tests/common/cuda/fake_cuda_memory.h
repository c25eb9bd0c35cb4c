// The memory of the fake CUDA runtime.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>

#include "common/base/check.h"
#include "tests/common/cuda/fake_cuda.h"

namespace psring::fake {

inline constexpr size_t kArena = size_t{1100} << 20;
inline constexpr size_t kPage = 4096;

inline thread_local int selected = 0;

// Device memory: one mapping, or two if opened handles have other addresses. Protected except while the fake
// works in it.
class Arena {
 public:
  Arena() {
    if (!TheFakeCuda().opens_elsewhere) {
      memory_ = opened_ = Map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
      // Its protection changes for every piece of work, in time proportional to its pages.
      (void)madvise(memory_, kArena, MADV_HUGEPAGE);
      return;
    }
    const int fd = memfd_create("fake gpu", MFD_CLOEXEC);
    PSRING_CHECK(fd >= 0 && ftruncate(fd, kArena) == 0);
    memory_ = Map(MAP_SHARED, fd);
    opened_ = Map(MAP_SHARED, fd);
    close(fd);
  }

  void* Allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    bytes = (bytes + kPage - 1) / kPage * kPage;
    if (TheFakeCuda().used + bytes > TheFakeCuda().memory) return nullptr;
    size_t at = TheFakeCuda().memory_from;
    for (const auto& [first, taken] : taken_) {
      if (first - at >= bytes) break;
      at = first + taken.bytes;
    }
    if (at + bytes > kArena) return nullptr;
    taken_[at] = {bytes, selected};
    Reach(at + bytes);
    TheFakeCuda().used += bytes;
    ++TheFakeCuda().buffers;
    return memory_ + at;
  }

  void Free(void* memory) {
    std::lock_guard lock(mutex_);
    const auto it = taken_.find(static_cast<char*>(memory) - memory_);
    PSRING_CHECK(it != taken_.end());
    TheFakeCuda().used -= it->second.bytes;
    --TheFakeCuda().buffers;
    taken_.erase(it);
  }

  bool Owns(const void* address) const { return address >= memory_ && address < memory_ + kArena; }
  bool Holds(const void* address) const {
    return Owns(address) || (address >= opened_ && address < opened_ + kArena);
  }
  // The address at which a process that opens a handle sees the owner's `address`.
  void* Opened(const void* address) const { return opened_ + (static_cast<const char*>(address) - memory_); }
  const void* OwnersOf(const void* opened) const {
    return memory_ + (static_cast<const char*>(opened) - opened_);
  }
  // Open handles of a buffer, by its first byte.
  void NoteOpened(const void* buffer, int change) {
    std::lock_guard lock(mutex_);
    if ((opens_[buffer] += change) == 0) opens_.erase(buffer);
  }
  bool IsOpen(const void* buffer) {
    std::lock_guard lock(mutex_);
    return opens_.contains(buffer);
  }
  struct Taken {
    size_t bytes = 0;
    int device = -1;
  };
  // This process's buffer that contains the address.
  Taken Holding(const void* address) {
    std::lock_guard lock(mutex_);
    auto it = taken_.upper_bound(static_cast<size_t>(static_cast<const char*>(address) - memory_));
    return it == taken_.begin() ? Taken() : std::prev(it)->second;
  }
  // The end of another process's memory.
  void ReachTo(const void* end) {
    std::lock_guard lock(mutex_);
    Reach(static_cast<size_t>(static_cast<const char*>(end) - memory_));
  }

  void Open() {
    std::lock_guard lock(mutex_);
    if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  void Close() {
    std::lock_guard lock(mutex_);
    if (--open_ == 0) Protect(PROT_NONE);
  }

 private:
  // The memory after `reach_` is always protected.
  void Reach(size_t end) {
    if (end <= reach_) return;
    reach_ = end;
    if (open_ > 0) Protect(PROT_READ | PROT_WRITE);
  }
  static char* Map(int flags, int fd) {
    void* const memory = mmap(nullptr, kArena, PROT_NONE, flags | MAP_NORESERVE, fd, 0);
    PSRING_CHECK(memory != MAP_FAILED);
    return static_cast<char*>(memory);
  }
  void Protect(int protection) {
    PSRING_CHECK(mprotect(memory_, reach_, protection) == 0);
    if (opened_ != memory_) PSRING_CHECK(mprotect(opened_, reach_, protection) == 0);
  }

  std::mutex mutex_;
  char *memory_, *opened_;
  int open_ = 0;
  size_t reach_ = 0;               // the highest end of any buffer
  std::map<size_t, Taken> taken_;  // by first byte
  std::map<const void*, int> opens_;
};

// The contents of a memory handle; at the same address in forked processes.
struct MemoryHandle {
  char* memory;
  size_t bytes;
};

inline Arena& TheArena() {
  static Arena* const arena = new Arena;
  return *arena;
}

inline std::mutex pinned_mutex;
inline std::map<const char*, size_t>& Pinned() {
  static auto* const pinned = new std::map<const char*, size_t>;
  return *pinned;
}

inline bool IsPinned(const void* address) {
  std::lock_guard lock(pinned_mutex);
  auto it = Pinned().upper_bound(static_cast<const char*>(address));
  if (it == Pinned().begin()) return false;
  --it;
  return static_cast<const char*>(address) < it->first + it->second;
}

}  // namespace psring::fake
