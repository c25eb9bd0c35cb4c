// Frames on one TCP connection to a peer, which may be encrypted: a header, then payload. Non-blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/tls/member_socket.h"
#include "ring_worker/transports/fifo.h"
#include "ring_worker/transports/frame.h"

namespace psring {

struct OutgoingFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;
  uint64_t transfer = 0;             // the number of the mesh's Transfers
  std::vector<std::byte> copy = {};  // the payload if the caller's memory may change
  size_t sent = 0;                   // header and payload

  size_t payload_sent() const { return sent < sizeof header ? 0 : sent - sizeof header; }
  bool complete() const { return sent == sizeof header + header.bytes; }
};

struct IncomingFrame {
  FrameHeader expected;
  Span to;
  ReduceOp op = ReduceOp::kSum;
  const std::byte* base = nullptr;  // to = base op received; null: to = received
  uint64_t gather = 0;              // the number of the mesh's gather
  size_t received = 0;              // of the payload, without the carried bytes
};

// One thread at a time.
class FrameStream {
 public:
  // `socket`: not valid until Connect.
  FrameStream(int rank, int peer, MemberSocket socket = MemberSocket()) : rank_(rank), peer_(peer) {
    if (socket.valid()) Connect(std::move(socket));
  }

  // Frames that were added before are sent and received from now on.
  void Connect(MemberSocket socket) {
    socket_ = std::move(socket);
    socket_.ReadAhead();
    writable_ = true;
  }

  // Frames are sent and received in the order in which they were added.
  Fifo<OutgoingFrame>& out() { return out_; }
  Fifo<IncomingFrame>& in() { return in_; }
  const Fifo<OutgoingFrame>& out() const { return out_; }
  const Fifo<IncomingFrame>& in() const { return in_; }

  // False after a call that moved less than requested, until SetReady.
  bool may_write() const { return writable_ && !out_.empty(); }
  bool may_read() const { return readable_ && !in_.empty(); }
  int fd() const { return socket_.fd(); }
  void SetReady(bool readable, bool writable) {
    readable_ |= readable;
    writable_ |= writable;
  }

  struct Moved {
    size_t bytes = 0;       // of payload
    bool complete = false;  // the first frame is complete: the caller removes it from the queue
  };

  // Writes as much of the first frame as the socket accepts. Unavailable: the connection is lost.
  absl::StatusOr<Moved> Write();

  // Reads what is available of the first frame, at most a window, and puts it in place. Unavailable as above;
  // other errors: the received frame is not the expected one, and the message names both.
  absl::StatusOr<Moved> Read(std::vector<std::byte>& window);

 private:
  absl::Status CompareHeaders() const;
  void TakePayload(std::vector<std::byte>& window, size_t bytes);

  int rank_;
  int peer_;
  MemberSocket socket_;
  Fifo<OutgoingFrame> out_;
  Fifo<IncomingFrame> in_;
  FrameHeader header_;  // of the frame being received
  size_t header_received_ = 0;
  std::byte carry_[sizeof(float)];  // bytes of an incomplete element
  size_t carried_ = 0;
  bool readable_ = false;
  bool writable_ = false;
};

// Payload to add is read in windows of this size and added while still in the L2 cache.
inline constexpr size_t kWindowBytes = 128 << 10;

}  // namespace psring
