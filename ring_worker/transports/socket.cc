#include "ring_worker/transports/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"

namespace psring {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no address for host \"", host, "\": ", gai_strerror(error)));
  }
  return Addresses(found, freeaddrinfo);
}

absl::StatusOr<FileDescriptor> OpenSocket(const addrinfo& address) {
  FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SystemError("cannot open a socket");
  return fd;
}

absl::Status WaitWritable(int fd, absl::Time deadline, const std::string& what) {
  pollfd waiting = {fd, POLLOUT, 0};
  while (true) {
    const int ready = poll(&waiting, 1, PollTimeoutMs(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return SystemError(what);
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError(absl::StrCat(what, ": no answer in time"));
  }
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int PollTimeoutMs(absl::Time deadline) {
  const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now() + absl::Microseconds(999));
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 3600 * 1000));
}

absl::StatusOr<Listener> Listen(const std::string& host) {
  PSRING_ASSIGN_OR_RETURN(Addresses addresses, Resolve(host, 0));
  Listener listener;
  PSRING_ASSIGN_OR_RETURN(listener.socket, OpenSocket(*addresses));
  const std::string what = absl::StrCat("cannot listen on ", host);
  if (bind(listener.socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) return SystemError(what);
  if (listen(listener.socket.get(), SOMAXCONN) != 0) return SystemError(what);
  sockaddr_storage bound;
  socklen_t length = sizeof bound;
  if (getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return SystemError(what);
  }
  listener.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                    : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return listener;
}

absl::StatusOr<FileDescriptor> Connect(const std::string& host, int port, absl::Time deadline) {
  PSRING_ASSIGN_OR_RETURN(Addresses addresses, Resolve(host, port));
  PSRING_ASSIGN_OR_RETURN(FileDescriptor fd, OpenSocket(*addresses));
  const std::string what = absl::StrCat("cannot connect to ", host, ":", port);
  if (connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return SystemError(what);
    PSRING_RETURN_IF_ERROR(WaitWritable(fd.get(), deadline, what));
    socklen_t length = sizeof errno;
    int error = 0;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return SystemError(what);
    if (errno = error; error != 0) return SystemError(what);
  }
  PSRING_RETURN_IF_ERROR(PrepareSocket(fd.get()));
  return fd;
}

absl::Status PrepareSocket(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return SystemError("TCP_NODELAY");
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const void* data, size_t bytes, absl::Time deadline) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent >= 0) {
      next += sent;
      bytes -= sent;
    } else if (errno == EAGAIN) {
      PSRING_RETURN_IF_ERROR(WaitWritable(fd, deadline, "cannot send"));
    } else if (errno != EINTR) {
      return SystemError("cannot send");
    }
  }
  return absl::OkStatus();
}

namespace {

// In Linux's abstract namespace: the first byte of the path is 0.
socklen_t UnixAddress(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat("psring-", name);
  PSRING_CHECK(path.size() + 1 <= sizeof address.sun_path);
  path.copy(address.sun_path + 1, path.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
}

// What came as ancillary data, all of it owned from here on.
std::vector<FileDescriptor> TakeDescriptors(msghdr& message) {
  std::vector<FileDescriptor> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

constexpr size_t kMostDescriptors = 4;

}  // namespace

absl::StatusOr<FileDescriptor> ListenUnix(const std::string& name) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SystemError("cannot open a Unix socket");
  sockaddr_un address;
  const socklen_t length = UnixAddress(name, address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd.get(), 128) != 0) {
    return SystemError("cannot listen on a Unix socket");
  }
  return fd;
}

absl::StatusOr<FileDescriptor> ConnectUnix(const std::string& name) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SystemError("cannot open a Unix socket");
  sockaddr_un address;
  const socklen_t length = UnixAddress(name, address);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return absl::NotFoundError(SystemError("no Unix socket of that name").message());
  }
  return fd;
}

absl::Status SendDescriptors(int socket, const void* data, size_t bytes, const std::vector<int>& fds) {
  PSRING_CHECK(fds.size() <= kMostDescriptors);
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  iovec part = {const_cast<void*>(data), bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != ssize_t(bytes)) {
    return SystemError("cannot hand over shared memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FileDescriptor>> ReceiveDescriptors(int socket, void* data, size_t bytes,
                                                               size_t count, absl::Time deadline) {
  while (true) {
    alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
    iovec part = {data, bytes};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (n > 0) {
      std::vector<FileDescriptor> fds = TakeDescriptors(message);
      if (size_t(n) == bytes && fds.size() == count) return fds;
      return absl::DataLossError("what came over the Unix socket is no shared memory");
    }
    if (n == 0) return absl::UnavailableError("its Unix socket ended");
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return SystemError("cannot receive shared memory");
    pollfd waiting = {socket, POLLIN, 0};
    if (poll(&waiting, 1, PollTimeoutMs(deadline)) <= 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError("its shared memory did not come in time");
    }
  }
}

}  // namespace psring
