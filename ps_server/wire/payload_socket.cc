#include "ps_server/wire/payload_socket.h"

#include <sys/uio.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

// A worker has more than one connection.
absl::StatusOr<size_t> OfPayload(absl::StatusOr<size_t> moved) {
  if (moved.ok()) return moved;
  return Unavailable("payload: ", moved.status().message());
}

}  // namespace

absl::StatusOr<bool> PayloadSocket::Send(const PayloadHeader& header, Bytes payload) {
  const size_t of_header = std::min(sent_, sizeof header);
  const size_t of_payload = sent_ - of_header;
  iovec parts[] = {
      {const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&header)) + of_header,
       sizeof header - of_header},
      {const_cast<std::byte*>(payload.data()) + of_payload, payload.size() - of_payload},
  };
  PSRING_ASSIGN_OR_RETURN(const size_t n, OfPayload(socket_.Send(parts)));
  sent_ += n;
  writable_ = sent_ == sizeof header + payload.size();
  if (writable_) sent_ = 0;
  return writable_;
}

absl::StatusOr<size_t> PayloadSocket::Receive(std::byte* to, size_t bytes) {
  PSRING_ASSIGN_OR_RETURN(const size_t n, OfPayload(socket_.Receive(to, bytes)));
  readable_ = n == bytes;
  return n;
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
