#include "ring_worker/transports/frame_stream.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/kernels/reduce.h"

namespace psring {

absl::StatusOr<FrameStream::Moved> FrameStream::Write() {
  PSRING_CHECK(!out_.empty());
  OutgoingFrame& out = out_.front();
  const size_t before = out.payload_sent();
  iovec parts[2];
  int count = 0;
  if (out.sent < sizeof out.header) {
    parts[count++] = {reinterpret_cast<std::byte*>(&out.header) + out.sent, sizeof out.header - out.sent};
  }
  parts[count++] = {const_cast<std::byte*>(out.payload) + before, out.header.bytes - before};
  PSRING_ASSIGN_OR_RETURN(const size_t n, socket_.Send({parts, static_cast<size_t>(count)}));
  out.sent += n;
  writable_ = out.complete();
  return Moved{out.payload_sent() - before, out.complete()};
}

absl::StatusOr<FrameStream::Moved> FrameStream::Read(std::vector<std::byte>& window) {
  PSRING_CHECK(!in_.empty() && window.size() >= kWindowBytes + sizeof carry_);
  const IncomingFrame& in = in_.front();
  iovec parts[2];
  int count = 0;
  const size_t header_missing = sizeof header_ - header_received_;
  if (header_missing > 0) {
    parts[count++] = {reinterpret_cast<std::byte*>(&header_) + header_received_, header_missing};
  }
  const size_t payload_missing = in.to.bytes() - in.received - carried_;
  if (in.base == nullptr) {
    parts[count++] = {static_cast<std::byte*>(in.to.data) + in.received, payload_missing};
  } else {
    parts[count++] = {window.data() + carried_, std::min(payload_missing, kWindowBytes)};
  }
  size_t asked = 0;
  for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
  PSRING_ASSIGN_OR_RETURN(const size_t n, socket_.Receive({parts, static_cast<size_t>(count)}));
  readable_ = n == asked;
  if (n == 0) return Moved{};

  const size_t header_bytes = std::min(n, header_missing);
  header_received_ += header_bytes;
  if (header_received_ < sizeof header_) return Moved{};
  if (header_missing > 0) PSRING_RETURN_IF_ERROR(CompareHeaders());
  const size_t moved = n - header_bytes;
  TakePayload(window, moved);
  const bool complete = in.received == in.to.bytes();
  if (complete) header_received_ = 0;
  return Moved{moved, complete};
}

absl::Status FrameStream::CompareHeaders() const {
  const FrameHeader& expected = in_.front().expected;
  if (header_ == expected) return absl::OkStatus();
  if (header_.magic == expected.magic) return FramesDiffer(peer_, header_, rank_, expected);
  return DataLoss("rank ", peer_, " sent an invalid frame: it begins with ", absl::Hex(header_.magic),
                  ", not ", absl::Hex(expected.magic));
}

void FrameStream::TakePayload(std::vector<std::byte>& window, size_t bytes) {
  IncomingFrame& in = in_.front();
  if (in.base == nullptr) {
    in.received += bytes;
    return;
  }
  // Read() left space for the carried bytes before the new ones.
  std::memcpy(window.data(), carry_, carried_);
  const size_t there = carried_ + bytes;
  const size_t whole = there - there % SizeOf(in.to.type);
  const void* const sources[] = {in.base + in.received, window.data()};
  cpu::Reduce(in.op, in.to.type, whole / SizeOf(in.to.type),
              static_cast<std::byte*>(in.to.data) + in.received, sources, 2);
  in.received += whole;
  carried_ = there - whole;
  std::memcpy(carry_, window.data() + whole, carried_);
}

}  // namespace psring
