// The few things that TCP needs of the system: addresses, sockets that do not block, waits with deadlines.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file_descriptor.h"

namespace psring {

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

// All of `bytes`; for short messages at the start.
absl::Status WriteAll(int fd, const void* data, size_t bytes, absl::Time deadline);

}  // namespace psring
