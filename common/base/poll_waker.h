#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "common/base/file_descriptor.h"

namespace psring {

// Ends the poll() of another thread, which waits for POLLIN of `fd`. Thread-safe.
class PollWaker {
 public:
  bool valid() const { return event_.valid(); }  // false: out of descriptors
  int fd() const { return event_.get(); }
  bool Wake() const {  // false: `fd` is readable already
    const uint64_t one = 1;
    return write(event_.get(), &one, sizeof one) == sizeof one;
  }
  void Clear() const {
    uint64_t wakes = 0;
    (void)!read(event_.get(), &wakes, sizeof wakes);
  }

 private:
  const FileDescriptor event_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

}  // namespace psring
