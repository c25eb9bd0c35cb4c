// For tests that are one end of a connection.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/net/tcp_socket.h"

namespace psring {

// Writes all `bytes`.
inline absl::Status WriteAll(int fd, const void* data, size_t bytes, MonotonicTime deadline) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent >= 0) {
      next += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      PSRING_RETURN_IF_ERROR(AwaitSocket(fd, POLLOUT, deadline, "cannot send"));
    } else if (errno != EINTR) {
      return SystemError("cannot send");
    }
  }
  return absl::OkStatus();
}

}  // namespace psring
