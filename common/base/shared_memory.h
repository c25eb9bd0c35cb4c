// Memory that several processes map, and futexes in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"

namespace psring {

// A mapping of an anonymous file (memfd) whose size is sealed, so that access never raises SIGBUS. The kernel
// frees it when the last process that maps it ends, even by a crash. Move-only.
//
// Not protected: the contents. A process that has the descriptor can change them at any time, so what is read
// from memory of another process is copied before it is checked.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Zero-filled; pages are allocated when touched. ResourceExhausted contains the requested size.
  static absl::StatusOr<SharedMemory> Create(size_t bytes);
  // Maps memory that another process made with Create, and takes ownership of the descriptor.
  // InvalidArgument: not such memory, or smaller than `bytes`. `prefault`: no page faults later.
  static absl::StatusOr<SharedMemory> Adopt(int fd, size_t bytes, bool prefault);

  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return data_.get_deleter().bytes; }
  int fd() const { return fd_.get(); }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* data) const;
  };
  SharedMemory(std::byte* data, size_t bytes, FileDescriptor fd) : data_(data, {bytes}), fd_(std::move(fd)) {}

  std::unique_ptr<std::byte, Unmap> data_;
  FileDescriptor fd_;
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
