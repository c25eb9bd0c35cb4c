// The few things that TCP needs of the system: addresses, sockets that do not block, waits with deadlines.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// "WHAT: Connection refused", from errno.
absl::Status SystemError(const std::string& what);

// What is left until `deadline`, for poll(): rounded up, at least 0, at most an hour.
int PollTimeoutMs(absl::Time deadline);

struct Listener {
  FileDescriptor socket;
  int port = 0;  // chosen by the system
};
absl::StatusOr<Listener> Listen(const std::string& host);

// DeadlineExceeded or Unavailable name the address.
absl::StatusOr<FileDescriptor> Connect(const std::string& host, int port, absl::Time deadline);

// For sockets that are accepted: as Connect leaves its own.
absl::Status PrepareSocket(int fd);

// A Unix socket without a file: `name` is known to this host and network namespace alone, and goes with the
// listener.
absl::StatusOr<FileDescriptor> ListenUnix(const std::string& name);
// At once: NotFound where nobody of this host listens there.
absl::StatusOr<FileDescriptor> ConnectUnix(const std::string& name);

// Hands descriptors, with a few bytes, to the process at the other end of a Unix socket.
absl::Status SendDescriptors(int socket, const void* data, size_t bytes, const std::vector<int>& fds);
// The next such message: its bytes, all of them, and as many descriptors as are asked for. Unavailable: the
// other end is gone.
absl::StatusOr<std::vector<FileDescriptor>> ReceiveDescriptors(int socket, void* data, size_t bytes,
                                                               size_t count, absl::Time deadline);

// All of `bytes`; for short messages at the start.
absl::Status WriteAll(int fd, const void* data, size_t bytes, absl::Time deadline);

}  // namespace psring
