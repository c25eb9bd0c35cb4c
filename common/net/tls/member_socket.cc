#include "common/net/tls/member_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/errors.h"
#include "common/net/tls/tls_relay.h"
#include "common/net/tls/tls_session.h"

namespace psring {
namespace {

constexpr size_t kReadAheadBytes = 256 << 10;

absl::Status CannotMove(const char* what) { return Unavailable("cannot ", what, ": ", std::strerror(errno)); }

msghdr MessageOf(absl::Span<const iovec> parts) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

MemberSocket::MemberSocket() = default;
MemberSocket::MemberSocket(FileDescriptor plain) : socket_(std::move(plain)) {}
MemberSocket::MemberSocket(FileDescriptor socket, std::unique_ptr<TlsSession> session,
                           std::shared_ptr<TlsRelays> relays)
    : socket_(std::move(socket)), session_(std::move(session)), relays_(std::move(relays)) {}
MemberSocket::MemberSocket(MemberSocket&&) noexcept = default;
MemberSocket& MemberSocket::operator=(MemberSocket&&) noexcept = default;
MemberSocket::~MemberSocket() = default;

absl::StatusOr<size_t> MemberSocket::Send(absl::Span<const iovec> parts) {
  if (session_ != nullptr) return session_->Send(parts);
  const msghdr message = MessageOf(parts);
  while (true) {
    const ssize_t n = sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EAGAIN) return size_t{0};
    if (errno != EINTR) return CannotMove("send");
  }
}

absl::StatusOr<size_t> MemberSocket::Send(const void* data, size_t bytes) {
  const iovec part = {const_cast<void*>(data), bytes};
  return Send({&part, 1});
}

absl::StatusOr<size_t> MemberSocket::Receive(absl::Span<const iovec> parts) {
  if (session_ != nullptr) return session_->Receive(parts);
  msghdr message = MessageOf(parts);
  while (true) {
    const ssize_t n = recvmsg(fd(), &message, MSG_WAITALL);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) return Unavailable(kConnectionEnded);
    if (errno == EAGAIN) return size_t{0};
    if (errno != EINTR) return CannotMove("receive");
  }
}

absl::StatusOr<size_t> MemberSocket::Receive(void* data, size_t bytes) {
  const iovec part = {data, bytes};
  return Receive({&part, 1});
}

void MemberSocket::ReadAhead() {
  if (session_ != nullptr) session_->ReadAhead(kReadAheadBytes);
}

FileDescriptor MemberSocket::TakeDescriptor() {
  if (session_ != nullptr) session_->SetSocket(-1);
  return std::move(socket_);
}

void MemberSocket::SetDescriptor(FileDescriptor socket) {
  socket_ = std::move(socket);
  if (session_ != nullptr) session_->SetSocket(fd());
}

absl::StatusOr<FileDescriptor> MemberSocket::TakeClearText() {
  if (session_ == nullptr) return TakeDescriptor();
  return relays_->Start(std::move(session_), std::move(socket_));
}

}  // namespace psring
