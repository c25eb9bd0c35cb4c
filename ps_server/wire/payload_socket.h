// A worker's payload connection to a server (--server_wire stream): frames of a header, which is a message
// (wire.h), and its payload. The messages are chunks of gradients and of answers, resets of a bucket, and in
// a job with tables rows and the worker's Barriers and Leave; all others are on the worker's gRPC stream.
// Non-blocking, and encrypted if the job's connections are.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "common/net/tls/member_socket.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/wire/wire.h"

namespace psring {

// Both sides must have the same byte order, which the magic number verifies.
struct PayloadHeader {
  static constexpr uint32_t kMagic = 0x50535031;

  uint32_t magic = kMagic;
  uint32_t bytes = 0;  // of the payload, at most kChunkBytes
  // How many messages its sender had put on the gRPC stream before. The receiver handles those first, so the
  // order of messages is that of one stream.
  uint64_t after = 0;
  MessageFields fields = {};
};
static_assert(sizeof(PayloadHeader) == 16 + 8 * kMessageFields);

// Whether a worker of a job with tables sends the message on its payload connection: those of rows, and
// Leave, which must not arrive before them.
inline bool FollowsRows(const message::ToServer& message) {
  return std::holds_alternative<message::PullRows>(message) ||
         std::holds_alternative<message::PushRows>(message) ||
         std::holds_alternative<message::InitialRows>(message) ||
         std::holds_alternative<message::Barrier>(message) || std::holds_alternative<message::Leave>(message);
}

// One thread at a time.
class PayloadSocket {
 public:
  explicit PayloadSocket(MemberSocket socket) : socket_(std::move(socket)) { socket_.ReadAhead(); }

  int fd() const { return socket_.fd(); }
  // False after a call that moved less than requested, until SetReady.
  bool may_write() const { return writable_; }
  bool may_read() const { return readable_; }
  // `found`: by poll().
  void Notice(short found) {
    constexpr short kBroken = POLLHUP | POLLERR | POLLNVAL;
    SetReady((found & (POLLIN | kBroken)) != 0, (found & (POLLOUT | kBroken)) != 0);
  }
  void SetReady(bool readable, bool writable) {
    readable_ |= readable;
    writable_ |= writable;
  }

  // Sends more of a frame: the same one until the result is true, when it is complete. Unavailable: the
  // connection is lost.
  absl::StatusOr<bool> Send(const PayloadHeader& header, Bytes payload);

  // Receives more of a frame's header. True: `header()` is complete, until Next. Unavailable: the connection
  // is lost; InvalidArgument: these bytes are no header.
  absl::StatusOr<bool> ReceiveHeader();
  const PayloadHeader& header() const { return header_; }
  // Then more of its payload, which begins at `to`. True: it is complete.
  absl::StatusOr<bool> ReceivePayload(std::byte* to);
  size_t payload_received() const { return payload_received_; }
  void Next() { header_received_ = payload_received_ = 0; }

 private:
  absl::StatusOr<size_t> Receive(std::byte* to, size_t bytes);

  MemberSocket socket_;
  size_t sent_ = 0;  // of the header and payload that are being sent
  PayloadHeader header_;
  size_t header_received_ = 0, payload_received_ = 0;
  bool readable_ = false, writable_ = true;
};

}  // namespace psring
