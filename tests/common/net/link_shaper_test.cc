#include "common/net/link_shaper.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "common/measure/trace.h"

namespace psring {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(TokenBucket, LetsABurstPassAndThenKeepsToTheRate) {
  TokenBucket bucket(8e6, 1000);  // 1000 bytes a ms
  const int64_t begin = 10 * kMs;
  EXPECT_LE(bucket.ReadyNs(), begin);
  bucket.Take(begin, 1000);
  EXPECT_LE(bucket.ReadyNs(), begin);  // the burst
  bucket.Take(begin, 3000);
  EXPECT_EQ(bucket.ReadyNs(), begin + 3 * kMs);
  // A long pause saves up no more than a burst.
  bucket.Take(begin + 100 * kMs, 1000);
  bucket.Take(begin + 100 * kMs, 1000);
  EXPECT_EQ(bucket.ReadyNs(), begin + 101 * kMs);
}

TEST(TokenBucket, WithoutARateNobodyWaits) {
  TokenBucket bucket(0, 0);
  bucket.Take(5, 1 << 30);
  EXPECT_LE(bucket.ReadyNs(), 5);
}

struct Ends {
  FileDescriptor near, far;
};

// A connection whose near end is wrapped.
Ends Connected(LinkShaper& shaper) {
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
  Ends ends{FileDescriptor(), FileDescriptor(sockets[1])};
  ends.near = *shaper.Wrap(FileDescriptor(sockets[0]));
  return ends;
}

bool Wait(int fd, short events) {
  pollfd waiting = {fd, events, 0};
  return poll(&waiting, 1, 5000) > 0;
}

void SendAll(int fd, size_t bytes) {
  const std::vector<char> block(64 << 10, 'x');
  while (bytes > 0) {
    const ssize_t sent = send(fd, block.data(), std::min(bytes, block.size()), MSG_NOSIGNAL);
    if (sent > 0) bytes -= static_cast<size_t>(sent);
    if (sent <= 0 && !Wait(fd, POLLOUT)) return;
  }
}

size_t ReceiveAll(int fd, size_t bytes) {
  std::vector<char> block(64 << 10);
  size_t received = 0;
  while (received < bytes) {
    const ssize_t got = recv(fd, block.data(), block.size(), 0);
    if (got == 0) break;
    if (got > 0) received += static_cast<size_t>(got);
    if (got < 0 && !Wait(fd, POLLIN)) break;
  }
  return received;
}

double Seconds(int64_t begin_ns) { return 1e-9 * static_cast<double>(MonotonicNanos() - begin_ns); }

constexpr size_t kBytes = 2'000'000;
constexpr double kRate = 2e8;  // 2 MB take 80 ms of payload, 84 with headers

TEST(LinkShaper, BothDirectionsHaveTheRateAtOnce) {
  LinkShaper shaper({.bits_per_s = kRate, .burst_bytes = 16 << 10});
  Ends ends = Connected(shaper);
  const int64_t begin = MonotonicNanos();
  std::thread out([&] { SendAll(ends.near.get(), kBytes); });
  std::thread in([&] { SendAll(ends.far.get(), kBytes); });
  std::thread back([&] { EXPECT_EQ(ReceiveAll(ends.near.get(), kBytes), kBytes); });
  EXPECT_EQ(ReceiveAll(ends.far.get(), kBytes), kBytes);
  for (std::thread* thread : {&out, &in, &back}) thread->join();
  const double ideal = 8 * kBytes * 1514 / 1448 / kRate;
  EXPECT_GT(Seconds(begin), 0.97 * ideal);
  EXPECT_LT(Seconds(begin), 1.5 * ideal);
}

TEST(LinkShaper, ConnectionsOfAMachineShareItsLink) {
  LinkShaper shaper({.bits_per_s = kRate, .burst_bytes = 16 << 10});
  Ends first = Connected(shaper), second = Connected(shaper);
  const int64_t begin = MonotonicNanos();
  std::thread one([&] { SendAll(first.far.get(), kBytes); });
  std::thread two([&] { SendAll(second.far.get(), kBytes); });
  std::thread other([&] { EXPECT_EQ(ReceiveAll(first.near.get(), kBytes), kBytes); });
  EXPECT_EQ(ReceiveAll(second.near.get(), kBytes), kBytes);
  for (std::thread* thread : {&one, &two, &other}) thread->join();
  EXPECT_GT(Seconds(begin), 0.97 * 2 * 8 * kBytes / kRate);
}

TEST(LinkShaper, ConnectionsAreServedInTurn) {
  LinkShaper shaper({.bits_per_s = kRate, .burst_bytes = 16 << 10});
  Ends first = Connected(shaper), second = Connected(shaper);
  std::thread one([&] { SendAll(first.far.get(), kBytes); });
  std::thread two([&] { SendAll(second.far.get(), kBytes); });
  std::atomic<size_t> others = 0;
  std::thread other([&] {
    while (others < kBytes) {
      const size_t got = ReceiveAll(first.near.get(), 1);  // and what else is there
      if (got == 0) break;
      others += got;
    }
  });
  const size_t half = ReceiveAll(second.near.get(), kBytes / 2);
  const size_t meanwhile = others;
  EXPECT_EQ(half + ReceiveAll(second.near.get(), kBytes - half), kBytes);
  for (std::thread* thread : {&one, &two, &other}) thread->join();
  EXPECT_GT(meanwhile, kBytes / 4);
  EXPECT_LT(meanwhile, 3 * kBytes / 4);
}

TEST(LinkShaper, LatencyDelaysWhatLeavesAndDoesNotLimitTheRate) {
  LinkShaper shaper({.latency_s = 0.05});
  Ends ends = Connected(shaper);
  const int64_t begin = MonotonicNanos();
  std::thread out([&] { SendAll(ends.near.get(), kBytes); });
  EXPECT_EQ(ReceiveAll(ends.far.get(), kBytes), kBytes);
  out.join();
  EXPECT_GT(Seconds(begin), 0.05);
  EXPECT_LT(Seconds(begin), 0.15);
  const int64_t back = MonotonicNanos();
  SendAll(ends.far.get(), 1);
  EXPECT_EQ(ReceiveAll(ends.near.get(), 1), 1);
  EXPECT_LT(Seconds(back), 0.04);  // its sender's own shaper would delay it
}

TEST(LinkShaper, WhatWasSentArrivesEvenIfItsSenderCloses) {
  LinkShaper shaper({.bits_per_s = kRate, .burst_bytes = 16 << 10});
  Ends ends = Connected(shaper);
  std::thread out([&] {
    SendAll(ends.near.get(), kBytes);
    ends.near = FileDescriptor();
  });
  EXPECT_EQ(ReceiveAll(ends.far.get(), 2 * kBytes), kBytes);  // then the end
  out.join();
}

TEST(LinkShaper, APeerThatIsGoneEndsTheConnection) {
  LinkShaper shaper({.bits_per_s = kRate, .burst_bytes = 16 << 10});
  Ends ends = Connected(shaper);
  ends.far = FileDescriptor();
  EXPECT_TRUE(Wait(ends.near.get(), POLLIN));
  EXPECT_EQ(ReceiveAll(ends.near.get(), 1), 0);
}

}  // namespace
}  // namespace psring
