#include "common/net/tcp_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/address.h"

namespace psring {
namespace {

absl::StatusOr<FileDescriptor> OpenSocket(const addrinfo& address) {
  FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SystemError("cannot open a socket");
  return fd;
}

absl::StatusOr<FileDescriptor> Listen(const addrinfo& address, const std::string& what, bool reuse) {
  PSRING_ASSIGN_OR_RETURN(FileDescriptor fd, OpenSocket(address));
  const int on = 1;  // the port may have old connections in TIME_WAIT
  if (reuse) (void)setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) return fd;
  const bool is_used = errno == EADDRINUSE;
  const absl::Status failed = SystemError(what);
  return is_used ? AlreadyExists(failed.message()) : failed;
}

absl::StatusOr<FileDescriptor> Connect(const addrinfo& address, const std::string& what,
                                       MonotonicTime deadline, const std::string& source) {
  PSRING_ASSIGN_OR_RETURN(FileDescriptor fd, OpenSocket(address));
  if (!source.empty()) {
    PSRING_ASSIGN_OR_RETURN(const AddressList from, ResolveHost(source, 0));
    if (bind(fd.get(), from->ai_addr, from->ai_addrlen) != 0) {
      return SystemError(absl::StrCat("cannot connect from ", source));
    }
  }
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return SystemError(what);
    PSRING_RETURN_IF_ERROR(AwaitSocket(fd.get(), POLLOUT, deadline, what));
    socklen_t length = sizeof errno;
    int error = 0;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return SystemError(what);
    if (errno = error; error != 0) return SystemError(what);
  }
  PSRING_RETURN_IF_ERROR(PrepareTcpSocket(fd.get()));
  return fd;
}

}  // namespace

absl::Status SystemError(const std::string& what) { return Unavailable(what, ": ", std::strerror(errno)); }

int PollTimeoutMs(MonotonicTime deadline) {
  const int64_t ms = absl::ToInt64Milliseconds(deadline - MonotonicNow() + absl::Microseconds(999));
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 3600 * 1000));
}

absl::Status AwaitSocket(int fd, short events, MonotonicTime deadline, const std::string& what) {
  pollfd waiting = {fd, events, 0};
  while (true) {
    const int ready = poll(&waiting, 1, PollTimeoutMs(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return SystemError(what);
    if (MonotonicNow() >= deadline) return DeadlineExceeded(what, ": no answer in time");
  }
}

absl::StatusOr<TcpListener> ListenTcp(const std::string& host, int port) {
  PSRING_ASSIGN_OR_RETURN(const AddressList addresses, ResolveHost(host, port));
  absl::StatusOr<FileDescriptor> socket;
  for (const addrinfo* address = addresses.get();
       address != nullptr && !socket.ok() && !absl::IsAlreadyExists(socket.status());
       address = address->ai_next) {
    socket = Listen(*address, absl::StrCat("cannot listen on ", AddressText(host, port)), port != 0);
  }
  PSRING_RETURN_IF_ERROR(socket.status());
  return TakeListener(*std::move(socket));
}

absl::StatusOr<TcpListener> TakeListener(FileDescriptor socket) {
  sockaddr_storage bound;
  auto* const address = reinterpret_cast<sockaddr*>(&bound);
  socklen_t length = sizeof bound;
  if (getsockname(socket.get(), address, &length) != 0) {
    return SystemError("cannot determine the port of a listener");
  }
  return TcpListener{std::move(socket), PortOf(address)};
}

bool WithinHost(int fd) {
  sockaddr_storage address = {};
  auto* const end = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (getsockname(fd, end, &length) != 0) return false;
  const std::string here = HostOf(end);
  length = sizeof address;
  return getpeername(fd, end, &length) == 0 && !here.empty() && here == HostOf(end);
}

absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, int port, MonotonicTime deadline,
                                          const std::string& source) {
  PSRING_ASSIGN_OR_RETURN(const AddressList addresses, ResolveHost(host, port));
  const std::string what = absl::StrCat("cannot connect to ", AddressText(host, port));
  absl::StatusOr<FileDescriptor> socket;
  for (const addrinfo* address = addresses.get(); address != nullptr && !socket.ok();
       address = address->ai_next) {
    socket = Connect(*address, what, deadline, source);
  }
  return socket;
}

absl::Status PrepareTcpSocket(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return SystemError("TCP_NODELAY");
  // Available on every Linux to every user; otherwise the system's default works too, only slower.
  constexpr absl::string_view kUnpaced = "reno";
  if (WithinHost(fd)) (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size());
  return absl::OkStatus();
}

absl::Status SendAll(MemberSocket& socket, const void* data, size_t bytes, MonotonicTime deadline) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    PSRING_ASSIGN_OR_RETURN(const size_t sent, socket.Send(next, bytes));
    next += sent;
    bytes -= sent;
    if (sent == 0) PSRING_RETURN_IF_ERROR(AwaitSocket(socket.fd(), POLLOUT, deadline, "cannot send"));
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(MemberSocket& socket, void* data, size_t bytes, MonotonicTime deadline,
                        const std::string& from) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const absl::StatusOr<size_t> got = socket.Receive(next, bytes);
    if (!got.ok()) return Unavailable(from, ": ", got.status().message());
    next += *got;
    bytes -= *got;
    if (bytes > 0) PSRING_RETURN_IF_ERROR(AwaitSocket(socket.fd(), POLLIN, deadline, from));
  }
  return absl::OkStatus();
}

}  // namespace psring
