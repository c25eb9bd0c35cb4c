// Memory that several processes map, and how they wait for one another in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

// A mapping of a file without a name (memfd): the kernel frees it when the last process that maps it ends,
// however it ends. Move-only.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Zero-filled; pages are allocated when touched. ResourceExhausted contains the requested size.
  static absl::StatusOr<SharedMemory> Create(size_t bytes);
  // Maps memory of another process and takes ownership of the descriptor. `prefault`: no page faults later.
  static absl::StatusOr<SharedMemory> Adopt(int fd, size_t bytes, bool prefault);
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        fd_(std::exchange(other.fd_, -1)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~SharedMemory();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  SharedMemory(std::byte* data, size_t bytes, int fd) : data_(data), bytes_(bytes), fd_(fd) {}

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

// Sleeps while `word` holds `value`, until a FutexWake or for `longest`. Can wake spuriously. Works across
// processes that map the word.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration longest);
// Wakes every sleeper.
void FutexWake(const std::atomic<uint32_t>& word);

// In spin loops: lets the sibling hardware thread run.
inline void SpinPause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

}  // namespace psring
