#include "ps_server/wire/payload_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/net/tcp_socket.h"
#include "tests/ps_server/test_job.h"
#include "tests/write_all.h"

namespace psring {
namespace {

class PayloadSocketTest : public ::testing::Test {
 protected:
  PayloadSocketTest() {
    int ends[2];
    PSRING_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    mine_ = std::make_unique<PayloadSocket>(MemberSocket(FileDescriptor(ends[0])));
    peer_ = FileDescriptor(ends[1]);
    mine_->SetReady(/*readable=*/true, /*writable=*/true);
  }
  void SendBytes(const void* data, size_t bytes) {
    ASSERT_EQ(WriteAll(peer_.get(), data, bytes, Soon()), absl::OkStatus());
  }

  std::unique_ptr<PayloadSocket> mine_;
  FileDescriptor peer_;
};

PayloadHeader HeaderOf(uint32_t bytes) {
  return {.bytes = bytes,
          .after = 3,
          .fields = FieldsOf(message::ToServer(message::Gradient{.bucket = 2, .step = 5}))};
}

TEST_F(PayloadSocketTest, FramesArriveByteByByte) {
  const std::string payload = "some payload";
  const PayloadHeader header = HeaderOf(static_cast<uint32_t>(payload.size()));
  const auto* const bytes = reinterpret_cast<const char*>(&header);
  std::string received(payload.size(), 0);
  auto* const to = reinterpret_cast<std::byte*>(received.data());
  for (int frame = 0; frame < 2; ++frame) {
    for (size_t i = 0; i < sizeof header; ++i) {
      EXPECT_FALSE(*mine_->ReceiveHeader());
      SendBytes(bytes + i, 1);
      mine_->SetReady(true, false);
    }
    EXPECT_TRUE(*mine_->ReceiveHeader());
    EXPECT_EQ(std::memcmp(&mine_->header(), &header, sizeof header), 0);
    for (const char& byte : payload) {
      EXPECT_FALSE(*mine_->ReceivePayload(to));
      SendBytes(&byte, 1);
    }
    EXPECT_TRUE(*mine_->ReceivePayload(to));
    EXPECT_EQ(received, payload);
    EXPECT_TRUE(*mine_->ReceiveHeader()) << "until Next";
    mine_->Next();
  }
}

TEST_F(PayloadSocketTest, AFrameIsSentAsTheSocketAcceptsIt) {
  std::string payload(kChunkBytes, 0);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 7);
  const PayloadHeader header = HeaderOf(static_cast<uint32_t>(payload.size()));
  std::string received;
  bool sent = false;
  for (int turn = 0; turn < 1000 && !sent; ++turn) {
    const auto complete = mine_->Send(header, std::as_bytes(std::span(payload)));
    ASSERT_TRUE(complete.ok()) << complete.status();
    sent = *complete;
    EXPECT_EQ(mine_->may_write(), sent);
    std::vector<char> piece(64 << 10);
    for (ssize_t n; (n = recv(peer_.get(), piece.data(), piece.size(), MSG_DONTWAIT)) > 0;)
      received.append(piece.data(), static_cast<size_t>(n));
  }
  ASSERT_TRUE(sent);
  ASSERT_EQ(received.size(), sizeof header + payload.size());
  EXPECT_EQ(std::memcmp(received.data(), &header, sizeof header), 0);
  EXPECT_EQ(received.substr(sizeof header), payload);
}

TEST_F(PayloadSocketTest, WhatIsNoFrameIsAnError) {
  PayloadHeader header = HeaderOf(kChunkBytes + 1);
  SendBytes(&header, sizeof header);
  EXPECT_EQ(mine_->ReceiveHeader().status().message(), "a chunk of 1048577 bytes; the most is 1048576");
  mine_->Next();
  header.magic = 0x12345678;
  SendBytes(&header, sizeof header);
  EXPECT_EQ(mine_->ReceiveHeader().status().message(), "payload that begins with 12345678, not 50535031");
  mine_->Next();
  peer_ = FileDescriptor();
  EXPECT_EQ(mine_->ReceiveHeader().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(mine_->Send(HeaderOf(0), {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PollWakerTest, IsReadableUntilItIsCleared) {
  const PollWaker waker;
  ASSERT_TRUE(waker.valid());
  EXPECT_FALSE(AwaitSocket(waker.fd(), POLLIN, MonotonicNow(), "").ok());
  waker.Wake();
  waker.Wake();
  EXPECT_TRUE(AwaitSocket(waker.fd(), POLLIN, Soon(), "").ok());
  waker.Clear();
  EXPECT_FALSE(AwaitSocket(waker.fd(), POLLIN, MonotonicNow(), "").ok());
}

}  // namespace
}  // namespace psring
