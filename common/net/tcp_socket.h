// TCP connections that do not block, and waits with deadlines.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"

namespace psring {

// "WHAT: Connection refused", from errno.
absl::Status SystemError(const std::string& what);

// What is left until `deadline`, for poll(): rounded up, at least 0, at most an hour.
int PollTimeoutMs(absl::Time deadline);

struct TcpListener {
  FileDescriptor socket;
  int port = 0;
};
// `port` 0: the system chooses.
absl::StatusOr<TcpListener> ListenTcp(const std::string& host, int port = 0);

// DeadlineExceeded or Unavailable name the address. `source`: this machine's address that the connection
// begins at; empty: the system chooses.
absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, int port, absl::Time deadline,
                                          const std::string& source = "");

// Both ends of a connection have one address.
bool WithinHost(int fd);

// For sockets that are connected by other means: as ConnectTcp leaves its own. Nothing waits for more to
// send; and where both ends have the same address, so that no link lies between them, congestion control is
// Reno's. There is no congestion on the way through one host's memory, and one that paces what is sent by a
// timer (BBR, the system's choice on many hosts) halves what passes, more so where others want the cores.
absl::Status PrepareTcpSocket(int fd);

// All of `bytes`; for short messages at the start.
absl::Status WriteAll(int fd, const void* data, size_t bytes, absl::Time deadline);

}  // namespace psring
