#include "common/net/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/tcp_socket.h"

namespace psring {
namespace {

constexpr char kLocal[] = "a local socket";

absl::Status Failed(const char* call, absl::StatusCode code = absl::StatusCode::kInternal) {
  return absl::Status(code, absl::StrCat(call, ": ", strerror(errno)));
}

struct Address {
  sockaddr_un address = {};
  socklen_t length = 0;
};

absl::StatusOr<Address> AddressOf(const std::string& name) {
  Address result;
  if (name.empty() || name.size() + 1 > sizeof(result.address.sun_path)) {
    return InvalidArgument("\"", name, "\" is not a valid name for a socket");
  }
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());  // a leading 0 makes it abstract
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

absl::StatusOr<FileDescriptor> NewSocket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return Failed("socket");
  return fd;
}

}  // namespace

absl::StatusOr<UnixSocket> UnixSocket::Listen(const std::string& name) {
  PSRING_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  PSRING_ASSIGN_OR_RETURN(FileDescriptor fd, NewSocket());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.length) != 0) {
    return Failed("bind",
                  errno == EADDRINUSE ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kInternal);
  }
  if (listen(fd.get(), SOMAXCONN) != 0) return Failed("listen");
  return UnixSocket(std::move(fd));
}

absl::StatusOr<UnixSocket> UnixSocket::Connect(const std::string& name, MonotonicTime deadline) {
  constexpr absl::Duration kBetweenTries = absl::Milliseconds(2);
  PSRING_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  PSRING_ASSIGN_OR_RETURN(FileDescriptor fd, NewSocket());
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Failed("connect", absl::StatusCode::kUnavailable);
    // The listener's queue is full, and poll() does not wait for it.
    if (MonotonicNow() + kBetweenTries >= deadline) {
      return Failed("connect", absl::StatusCode::kDeadlineExceeded);
    }
    absl::SleepFor(kBetweenTries);
  }
  return UnixSocket(std::move(fd));
}

absl::Status UnixSocket::Send(const std::string& text, const std::vector<int>& files,
                              MonotonicTime deadline) const {
  PSRING_CHECK(!text.empty() && text.size() <= kMaxText && files.size() <= kMaxFiles);
  iovec data = {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
  }
  while (true) {
    PSRING_RETURN_IF_ERROR(AwaitSocket(fd_.get(), POLLOUT, deadline, kLocal));
    if (sendmsg(fd_.get(), &message, MSG_NOSIGNAL) >= 0) return absl::OkStatus();
    if (errno != EAGAIN && errno != EINTR) return Failed("sendmsg", absl::StatusCode::kUnavailable);
  }
}

absl::StatusOr<UnixSocket::Message> UnixSocket::Receive(MonotonicTime deadline) const {
  Message result;
  result.text.resize(kMaxText);
  iovec data = {.iov_base = result.text.data(), .iov_len = result.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t bytes = -1;
  while (bytes < 0) {
    PSRING_RETURN_IF_ERROR(AwaitSocket(fd_.get(), POLLIN, deadline, kLocal));
    bytes = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (bytes < 0 && errno != EAGAIN && errno != EINTR) {
      return Failed("recvmsg", absl::StatusCode::kUnavailable);
    }
  }
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      result.files.emplace_back(fd);
    }
  }
  if (bytes == 0) return Unavailable("the other side has closed its local socket");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return InvalidArgument("the message is too long for a local socket");
  }
  result.text.resize(static_cast<size_t>(bytes));
  return result;
}

}  // namespace psring
