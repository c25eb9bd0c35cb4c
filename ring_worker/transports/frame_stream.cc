#include "ring_worker/transports/frame_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/cpu_kernels.h"

namespace psring {

std::string ToString(const FrameHeader& h) {
  const std::string operation(h.operation, strnlen(h.operation, sizeof h.operation));
  return absl::StrCat(ToString(CallInfo{h.call, operation, h.elements}), " (round ", h.round, ", segment ",
                      h.segment, ", ", h.bytes, " bytes)");
}

absl::StatusOr<size_t> FrameStream::Write() {
  PSRING_CHECK(!out_.empty());
  OutgoingFrame& out = out_.front();
  const size_t before = out.payload_sent();
  iovec parts[2];
  int count = 0;
  if (out.sent < sizeof out.header) {
    parts[count++] = {reinterpret_cast<std::byte*>(&out.header) + out.sent, sizeof out.header - out.sent};
  }
  parts[count++] = {const_cast<std::byte*>(out.payload) + before, out.header.bytes - before};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (n < 0) {
    if (errno == EINTR) return 0;
    writable_ = false;
    if (errno == EAGAIN) return 0;
    return SystemError("cannot send");
  }
  out.sent += n;
  const size_t moved = out.payload_sent() - before;
  if (out.complete()) {
    out_.pop_front();
  } else {
    writable_ = false;
  }
  return moved;
}

absl::StatusOr<size_t> FrameStream::Read(std::vector<std::byte>& window) {
  PSRING_CHECK(!in_.empty() && window.size() >= kWindowBytes + sizeof carry_);
  const IncomingFrame& in = in_.front();
  iovec parts[2];
  int count = 0;
  const size_t header_missing = sizeof header_ - header_received_;
  if (header_missing > 0) {
    parts[count++] = {reinterpret_cast<std::byte*>(&header_) + header_received_, header_missing};
  }
  const size_t payload_missing = in.to.bytes() - in.received - carried_;
  if (in.combine == Combine::kCopy) {
    parts[count++] = {static_cast<std::byte*>(in.to.data) + in.received, payload_missing};
  } else {
    parts[count++] = {window.data() + carried_, std::min(payload_missing, kWindowBytes)};
  }
  const ssize_t n = readv(socket_.get(), parts, count);
  if (n == 0) return absl::UnavailableError("its data connection ended");
  if (n < 0) {
    if (errno == EINTR) return 0;
    readable_ = false;
    if (errno == EAGAIN) return 0;
    return SystemError("cannot receive");
  }
  size_t asked = 0;
  for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
  if (size_t(n) < asked) readable_ = false;

  const size_t header_bytes = std::min<size_t>(n, header_missing);
  header_received_ += header_bytes;
  if (header_received_ < sizeof header_) return 0;
  if (header_missing > 0) PSRING_RETURN_IF_ERROR(CompareHeaders());
  const size_t moved = n - header_bytes;
  TakePayload(window, moved);
  return moved;
}

absl::Status FrameStream::CompareHeaders() const {
  const FrameHeader& expected = in_.front().expected;
  if (std::memcmp(&header_, &expected, sizeof expected) == 0) return absl::OkStatus();
  if (header_.magic != expected.magic) {
    return absl::DataLossError(absl::StrCat("rank ", peer_, " sent no frame: it begins with ",
                                            absl::Hex(header_.magic), ", not ", absl::Hex(expected.magic)));
  }
  return absl::FailedPreconditionError(absl::StrCat("the calls of the ranks differ: rank ", peer_, " is in ",
                                                    ToString(header_), ", rank ", rank_, " in ",
                                                    ToString(expected)));
}

void FrameStream::TakePayload(std::vector<std::byte>& window, size_t bytes) {
  IncomingFrame& in = in_.front();
  if (in.combine == Combine::kCopy) {
    in.received += bytes;
  } else {
    // The carried bytes belong in front of those that were read behind their place.
    std::memcpy(window.data(), carry_, carried_);
    const size_t there = carried_ + bytes;
    const size_t floats = there / sizeof(float);
    cpu::Add(floats, in.to.floats() + in.received / sizeof(float), reinterpret_cast<float*>(window.data()));
    in.received += floats * sizeof(float);
    carried_ = there - floats * sizeof(float);
    std::memcpy(carry_, window.data() + floats * sizeof(float), carried_);
  }
  if (in.received < in.to.bytes()) return;
  in_.pop_front();
  header_received_ = 0;
}

}  // namespace psring
