// Non-blocking TCP connections, and waits with deadlines.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "common/net/tls/member_socket.h"

namespace psring {

// "WHAT: Connection refused", from errno.
absl::Status SystemError(const std::string& what);

// The time until `deadline`, for poll(): rounded up, at least 0, at most an hour.
int PollTimeoutMs(MonotonicTime deadline);

// Waits for `events` of poll(). DeadlineExceeded: "WHAT: no answer in time".
absl::Status AwaitSocket(int fd, short events, MonotonicTime deadline, const std::string& what);

struct TcpListener {
  FileDescriptor socket;
  int port = 0;
};
// On the first address of `host` that this machine has. `port` 0: the system chooses. InvalidArgument: no
// such host; AlreadyExists: another program listens there; Unavailable: not an address of this machine, or
// not permitted.
absl::StatusOr<TcpListener> ListenTcp(const std::string& host, int port = 0);

// For a socket that listens already.
absl::StatusOr<TcpListener> TakeListener(FileDescriptor socket);

// To the first address of `host` that accepts. DeadlineExceeded and Unavailable name the address. `source`:
// the local address of the connection; empty: the system chooses.
absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, int port, MonotonicTime deadline,
                                          const std::string& source = "");

// Whether both ends of a connection have the same address.
bool WithinHost(int fd);

// Sets ConnectTcp's options on a socket from another source: TCP_NODELAY, and, if both ends have the same
// address, Reno congestion control. Within one host there is no congestion, and a congestion control that
// paces by a timer (BBR, the default on many hosts) halves the throughput, or worse on busy cores.
absl::Status PrepareTcpSocket(int fd);

// Sends all `bytes`; for short messages during setup.
absl::Status SendAll(MemberSocket& socket, const void* data, size_t bytes, MonotonicTime deadline);
// Receives all of them. `from` begins the error's message.
absl::Status ReceiveAll(MemberSocket& socket, void* data, size_t bytes, MonotonicTime deadline,
                        const std::string& from);

}  // namespace psring
