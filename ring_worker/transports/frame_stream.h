// Frames on the data connection to one peer: a header, then payload. Nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ring_worker/transport.h"
#include "ring_worker/transports/socket.h"

namespace psring {

// Both sides have the same byte order: the magic number says so.
struct FrameHeader {
  uint32_t magic = 0x52535031;
  uint32_t call = 0, round = 0, segment = 0;
  uint64_t bytes = 0;     // of the payload
  uint64_t elements = 0;  // of the whole call
  char operation[24] = {};
};
static_assert(sizeof(FrameHeader) == 56);

// "call 3, ring all-reduce of 1000 elements (round 0, segment 12, 256 bytes)"
std::string ToString(const FrameHeader& header);

struct OutgoingFrame {
  FrameHeader header;
  Tag tag;
  const std::byte* payload;
  size_t sent = 0;  // header and payload

  size_t payload_sent() const { return sent < sizeof header ? 0 : sent - sizeof header; }
  bool complete() const { return sent == sizeof header + header.bytes; }
};

struct IncomingFrame {
  FrameHeader expected;
  Tag tag;
  Span to;
  Combine combine;
  uint64_t number;      // of this rank's receives
  int after_peer = -1;  // an earlier receive into the same memory, which must be complete first
  uint64_t after_number = 0;
  size_t received = 0;  // of the payload; carried bytes not counted
};

// One thread at a time.
class FrameStream {
 public:
  FrameStream(int rank, int peer, FileDescriptor socket)
      : rank_(rank), peer_(peer), socket_(std::move(socket)) {}

  void Add(const OutgoingFrame& frame) { out_.push_back(frame); }
  void Add(const IncomingFrame& frame) { in_.push_back(frame); }

  // Frames leave and arrive in the order in which they were added; complete ones are gone.
  const std::deque<OutgoingFrame>& out() const { return out_; }
  const std::deque<IncomingFrame>& in() const { return in_; }

  // False from a call that moved less than it might have, until the socket is said to be ready.
  bool may_write() const { return writable_ && !out_.empty(); }
  bool may_read() const { return readable_ && !in_.empty(); }
  int fd() const { return socket_.get(); }
  void SetReady(bool readable, bool writable) {
    readable_ |= readable;
    writable_ |= writable;
  }

  // Writes of the first frame what the socket takes; how many bytes of payload that was. Unavailable: the
  // connection is lost, and the message says how.
  absl::StatusOr<size_t> Write();

  // Reads of the first frame what is there, at most a window, and puts it in its place. Unavailable as above;
  // other errors: what arrives is not what is expected, and the message names both.
  absl::StatusOr<size_t> Read(std::vector<std::byte>& window);

 private:
  absl::Status CompareHeaders() const;
  void TakePayload(std::vector<std::byte>& window, size_t bytes);

  const int rank_;
  const int peer_;
  const FileDescriptor socket_;
  std::deque<OutgoingFrame> out_;
  std::deque<IncomingFrame> in_;
  FrameHeader header_;  // of the frame that is coming in
  size_t header_received_ = 0;
  std::byte carry_[sizeof(float)];  // kAdd: bytes that do not make a float yet
  size_t carried_ = 0;
  bool readable_ = false;
  bool writable_ = true;
};

// Read, then added while it is still in the second-level cache.
inline constexpr size_t kWindowBytes = 128 << 10;

}  // namespace psring
