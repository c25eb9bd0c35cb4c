#include "common/net/link_shaper.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace psring {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(TokenBucket, PassesABurstAndThenLimitsTheRate) {
  TokenBucket bucket(8e6, 1000);  // 1000 bytes a ms
  const int64_t begin = 10 * kMs;
  EXPECT_LE(bucket.ReadyNs(), begin);
  bucket.Take(begin, 1000);
  EXPECT_LE(bucket.ReadyNs(), begin);  // the burst
  bucket.Take(begin, 3000);
  EXPECT_EQ(bucket.ReadyNs(), begin + 3 * kMs);
  // A long pause accumulates at most one burst.
  bucket.Take(begin + 100 * kMs, 1000);
  bucket.Take(begin + 100 * kMs, 1000);
  EXPECT_EQ(bucket.ReadyNs(), begin + 101 * kMs);
}

TEST(TokenBucket, WithoutARateThereIsNoDelay) {
  TokenBucket bucket(0, 0);
  bucket.Take(5, 1 << 30);
  EXPECT_LE(bucket.ReadyNs(), 5);
}

// Virtual time: it advances only when data waits for the link, and then straight to when the data may move.
// So elapsed time is what the shaper makes it, whatever the load of the machine.
class VirtualClock final : public LinkClock {
 public:
  int64_t NowNs() override { return now_ns_; }
  int64_t SleepNs(int64_t next_ns) override {
    if (next_ns == INT64_MAX || !runs_) return kMs;
    if (observer_) observer_();
    now_ns_ = std::max<int64_t>(now_ns_, next_ns);
    return 0;
  }

  // `observer` is called on the shaper's thread before each advance.
  void Start(std::function<void()> observer) {
    observer_ = std::move(observer);
    runs_ = true;
  }
  // From any thread.
  double seconds() const { return 1e-9 * static_cast<double>(now_ns_ - kBeginNs); }

 private:
  static constexpr int64_t kBeginNs = 1000 * kMs;
  std::function<void()> observer_;
  std::atomic<bool> runs_ = false;
  std::atomic<int64_t> now_ns_ = kBeginNs;
};

// Fits into the shaper's buffers, so that all of it is there when the clock starts.
constexpr size_t kBytes = 128 << 10;
constexpr double kRate = 1e7;
constexpr double kIdealSeconds = 8.0 * kBytes * 1514 / 1448 / kRate;  // 0.11

struct Ends {
  FileDescriptor near, far;
};

class LinkShaperTest : public testing::Test {
 protected:
  LinkShaperTest() { Make({.bits_per_s = kRate, .burst_bytes = 1 << 10}); }
  void Make(const LinkShape& shape) {
    auto clock = std::make_unique<VirtualClock>();
    clock_ = clock.get();
    shaper_.emplace(shape, std::move(clock));
  }
  void Start(std::function<void()> observer = nullptr) { clock_->Start(std::move(observer)); }
  double Seconds() const { return clock_->seconds(); }

  // A connection whose near end is wrapped.
  Ends Connect() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    Ends ends{FileDescriptor(), FileDescriptor(sockets[1])};
    ends.near = *shaper_->Wrap(FileDescriptor(sockets[0]));
    return ends;
  }

 private:
  VirtualClock* clock_ = nullptr;
  std::optional<LinkShaper> shaper_;
};

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

// Returns once the shaper has read the data.
void Load(int fd, size_t bytes) {
  SendAll(fd, bytes);
  for (int unread = 1; unread > 0; std::this_thread::yield()) ASSERT_EQ(ioctl(fd, SIOCOUTQ, &unread), 0);
}

size_t ReceiveAll(int fd, size_t bytes) {
  std::vector<char> block(64 << 10);
  size_t received = 0;
  while (received < bytes) {
    const ssize_t got = recv(fd, block.data(), std::min(block.size(), bytes - received), 0);
    if (got == 0) break;
    if (got > 0) received += static_cast<size_t>(got);
    if (got < 0 && !Wait(fd, POLLIN)) break;
  }
  return received;
}

TEST_F(LinkShaperTest, BothDirectionsHaveTheFullRateAtTheSameTime) {
  Ends ends = Connect();
  Load(ends.near.get(), kBytes);
  Load(ends.far.get(), kBytes);
  Start();
  EXPECT_EQ(ReceiveAll(ends.near.get(), kBytes), kBytes);
  EXPECT_EQ(ReceiveAll(ends.far.get(), kBytes), kBytes);
  // The last piece of at most 32 KiB is sent as soon as the debt of the one before it is paid.
  EXPECT_GE(Seconds(), 0.7 * kIdealSeconds);
  EXPECT_LE(Seconds(), 1.05 * kIdealSeconds);
}

TEST_F(LinkShaperTest, ConnectionsShareTheLink) {
  Ends first = Connect(), second = Connect();
  Load(first.far.get(), kBytes);
  Load(second.far.get(), kBytes);
  Start();
  EXPECT_EQ(ReceiveAll(first.near.get(), kBytes), kBytes);
  EXPECT_EQ(ReceiveAll(second.near.get(), kBytes), kBytes);
  EXPECT_GE(Seconds(), 0.85 * 2 * kIdealSeconds);
  EXPECT_LE(Seconds(), 1.05 * 2 * kIdealSeconds);
}

TEST_F(LinkShaperTest, ConnectionsAreServedInTurn) {
  Ends first = Connect(), second = Connect();
  Load(first.far.get(), kBytes);
  Load(second.far.get(), kBytes / 4);
  std::atomic<double> second_done = 10;
  Start([&] {
    int arrived = 0;
    ioctl(second.near.get(), FIONREAD, &arrived);
    if (arrived == kBytes / 4) second_done = std::min(second_done.load(), Seconds());
  });
  EXPECT_EQ(ReceiveAll(first.near.get(), kBytes), kBytes);
  EXPECT_LE(second_done.load(), 0.55 * kIdealSeconds)
      << "1.25 if the first connection were served completely before";
}

TEST_F(LinkShaperTest, LatencyDelaysOutgoingDataAndDoesNotLimitTheRate) {
  Make({.latency_s = 0.05});
  Ends ends = Connect();
  Load(ends.far.get(), 1);
  EXPECT_EQ(ReceiveAll(ends.near.get(), 1), 1) << "incoming data is not delayed";
  EXPECT_EQ(Seconds(), 0);
  Load(ends.near.get(), kBytes);
  Start();
  EXPECT_EQ(ReceiveAll(ends.far.get(), kBytes), kBytes);
  EXPECT_NEAR(Seconds(), 0.05, 1e-9);
}

TEST_F(LinkShaperTest, DataArrivesAfterItsSenderHasClosed) {
  Start();
  Ends ends = Connect();
  std::thread out([&] {
    SendAll(ends.near.get(), 8 * kBytes);
    ends.near = FileDescriptor();
  });
  EXPECT_EQ(ReceiveAll(ends.far.get(), 16 * kBytes), 8 * kBytes);  // then the end
  out.join();
}

TEST_F(LinkShaperTest, ALostPeerEndsTheConnection) {
  Ends ends = Connect();
  ends.far = FileDescriptor();
  EXPECT_TRUE(Wait(ends.near.get(), POLLIN));
  EXPECT_EQ(ReceiveAll(ends.near.get(), 1), 0);
}

}  // namespace
}  // namespace psring
