#include "ps_server/wire/payload_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/tcp_socket.h"

namespace psring {

absl::StatusOr<bool> PayloadSocket::Send(const PayloadHeader& header, Bytes payload) {
  const size_t of_header = std::min(sent_, sizeof header);
  const size_t of_payload = sent_ - of_header;
  iovec parts[] = {
      {const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&header)) + of_header,
       sizeof header - of_header},
      {const_cast<std::byte*>(payload.data()) + of_payload, payload.size() - of_payload},
  };
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = std::size(parts);
  const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) {
    if (errno == EINTR) return false;
    writable_ = false;
    if (errno == EAGAIN) return false;
    return absl::UnavailableError(SystemError("cannot send payload").message());
  }
  sent_ += static_cast<size_t>(n);
  writable_ = sent_ == sizeof header + payload.size();
  if (writable_) sent_ = 0;
  return writable_;
}

absl::StatusOr<size_t> PayloadSocket::Receive(std::byte* to, size_t bytes) {
  const ssize_t n = recv(socket_.get(), to, bytes, MSG_DONTWAIT);
  if (n == 0) return absl::UnavailableError("its payload connection ended");
  if (n < 0) {
    if (errno == EINTR) return size_t{0};
    readable_ = false;
    if (errno == EAGAIN) return size_t{0};
    return absl::UnavailableError(SystemError("cannot receive payload").message());
  }
  readable_ = static_cast<size_t>(n) == bytes;
  return static_cast<size_t>(n);
}

absl::StatusOr<bool> PayloadSocket::ReceiveHeader() {
  if (header_received_ == sizeof header_) return true;
  PSRING_ASSIGN_OR_RETURN(const size_t n, Receive(reinterpret_cast<std::byte*>(&header_) + header_received_,
                                                  sizeof header_ - header_received_));
  header_received_ += n;
  if (header_received_ < sizeof header_) return false;
  if (header_.magic != PayloadHeader::kMagic) {
    return InvalidArgument("payload that begins with ", absl::Hex(header_.magic), ", not ",
                           absl::Hex(PayloadHeader::kMagic));
  }
  if (header_.bytes > kChunkBytes) {
    return InvalidArgument("a chunk of ", header_.bytes, " bytes; the most is ", kChunkBytes);
  }
  return true;
}

absl::StatusOr<bool> PayloadSocket::ReceivePayload(std::byte* to) {
  if (payload_received_ < header_.bytes) {
    PSRING_ASSIGN_OR_RETURN(const size_t n,
                            Receive(to + payload_received_, header_.bytes - payload_received_));
    payload_received_ += n;
  }
  return payload_received_ == header_.bytes;
}

}  // namespace psring
