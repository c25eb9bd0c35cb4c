#include "ps_server/bench/round_limits.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cmath>
#include <latch>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/device/device.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "common/rendezvous/rendezvous.h"
#include "ps_server/bench/round_meeting.h"
#include "tests/ps_server/child.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(10);

// Element `i` of the gradient of `worker`: small whole numbers, so that sums are exact.
float Gradient(int worker, size_t i) { return static_cast<float>(worker + 1 + static_cast<int>(i % 5)); }

class RoundLimitTest : public testing::TestWithParam<std::tuple<int, size_t>> {};

TEST_P(RoundLimitTest, ARawRoundReturnsTheUpdatedWeights) {
  const auto [workers, count] = GetParam();
  const auto server = RoundLimitServer::Start("127.0.0.1", TestSecret(), workers, kSoon);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::thread> threads;
  std::vector<absl::Status> outcomes(workers);
  std::vector<std::vector<float>> weights(workers, std::vector<float>(count, 77));
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker, count = count] {
      auto client = RoundLimitClient::Connect((*server)->address(), TestSecret(), worker, kSoon);
      outcomes[worker] = client.status();
      if (!client.ok()) return;
      std::vector<float> gradient(count);
      for (size_t i = 0; i < count; ++i) gradient[i] = Gradient(worker, i);
      // A fused round between two raw ones does not change their result.
      for (const RoundLimit kind : {RoundLimit::kRaw, RoundLimit::kFused, RoundLimit::kRaw}) {
        const absl::Status status =
            client->Run(kind, {gradient.data(), count}, {weights[worker].data(), count});
        if (outcomes[worker].ok()) outcomes[worker] = status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int worker = 0; worker < workers; ++worker) {
    ASSERT_TRUE(outcomes[worker].ok()) << outcomes[worker];
    int wrong = 0;
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int other = 0; other < workers; ++other) sum += Gradient(other, i);
      // Each worker's two gradients are in the mean; the fused round's memory is apart.
      if (std::abs(weights[worker][i] + 2 * sum / static_cast<float>(workers)) > 1e-4f) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << "worker " << worker;
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, RoundLimitTest,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values<size_t>(1, 1000, (64 << 10) * 3 + 5)));

TEST(RoundLimitServerTest, AMissingWorkerIsAnErrorAtTheTimeout) {
  const auto server = RoundLimitServer::Start("127.0.0.1", TestSecret(), 2, absl::Milliseconds(300));
  ASSERT_TRUE(server.ok()) << server.status();
  auto client = RoundLimitClient::Connect((*server)->address(), TestSecret(), 0, kSoon);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> gradient(10), weights(10);
  EXPECT_FALSE(client->Run(RoundLimit::kRaw, {gradient.data(), 10}, {weights.data(), 10}).ok());
}

constexpr RoundCall kCall = {.kind = RoundLimit::kRaw, .count = 10};

absl::Status WaitFor(RoundMeeting& meeting, int worker, const RoundCall& call, bool gone = false) {
  return meeting.Wait(
      worker, call, [gone] { return gone; }, [] { return absl::OkStatus(); });
}

TEST(RoundMeetingTest, RejectsDuplicateAndUnknownWorkers) {
  RoundMeeting meeting(2, kSoon);
  EXPECT_EQ(meeting.Join(0), absl::OkStatus());
  EXPECT_EQ(meeting.Join(0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(meeting.Join(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(meeting.Join(-1).code(), absl::StatusCode::kInvalidArgument);
  meeting.Leave(0);
  EXPECT_EQ(meeting.Join(0), absl::OkStatus());
}

TEST(RoundMeetingTest, AWorkerThatTimedOutIsNotCounted) {
  RoundMeeting meeting(2, absl::Milliseconds(20));
  EXPECT_EQ(WaitFor(meeting, 0, kCall).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(WaitFor(meeting, 1, kCall).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(WaitFor(meeting, 1, {.kind = RoundLimit::kFused, .count = 3}).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(RoundMeetingTest, ADisconnectedWorkerIsNotCounted) {
  RoundMeeting meeting(2, kSoon);
  EXPECT_EQ(WaitFor(meeting, 0, kCall, /*gone=*/true).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(WaitFor(meeting, 1, {.count = 3}, /*gone=*/true).code(), absl::StatusCode::kUnavailable);
}

TEST(RoundMeetingTest, ADifferentCallIsRejectedAndTheFirstKeepsWaiting) {
  RoundMeeting meeting(2, kSoon);
  std::latch waits(1);
  std::thread first([&] {
    bool told = false;
    const auto tell = [&] {
      if (!std::exchange(told, true)) waits.count_down();
      return false;
    };
    EXPECT_EQ(meeting.Wait(0, kCall, tell, [] { return absl::OkStatus(); }), absl::OkStatus());
  });
  waits.wait();
  for (const RoundCall& other :
       {RoundCall{.kind = RoundLimit::kFused, .count = 10}, RoundCall{.kind = RoundLimit::kRaw, .count = 11},
        RoundCall{.kind = RoundLimit::kRaw, .count = 10, .stage = 1}}) {
    EXPECT_EQ(WaitFor(meeting, 1, other).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(
      WaitFor(meeting, 1, {.count = 11}).message(),
      "the control round: this worker asks for a raw round of 44 bytes, and the others for a raw round of 40 "
      "bytes");
  EXPECT_EQ(WaitFor(meeting, 1, kCall), absl::OkStatus());
  first.join();
}

TEST(RoundMeetingTest, ADisconnectedWorkerDoesNotBlockOtherCalls) {
  RoundMeeting meeting(2, kSoon);
  std::latch waits(1);
  std::thread gone([&] {
    int asked = 0;
    const auto is_gone = [&] {  // from the second query on
      if (asked == 0) waits.count_down();
      return ++asked > 1;
    };
    EXPECT_EQ(meeting.Wait(0, kCall, is_gone, [] { return absl::OkStatus(); }).code(),
              absl::StatusCode::kUnavailable);
  });
  waits.wait();
  std::thread first([&] { EXPECT_EQ(WaitFor(meeting, 1, {.count = 3}), absl::OkStatus()); });
  gone.join();
  EXPECT_EQ(WaitFor(meeting, 0, {.count = 3}), absl::OkStatus());
  first.join();
}

TEST(RoundMeetingTest, ARoundFailsForTheOthersWhenAWorkerLeavesIt) {
  RoundMeeting meeting(2, kSoon);
  const auto begin = [&] {
    std::thread other([&] { EXPECT_EQ(WaitFor(meeting, 1, kCall), absl::OkStatus()); });
    EXPECT_EQ(WaitFor(meeting, 0, kCall), absl::OkStatus());
    other.join();
  };
  const RoundCall next = {.count = 10, .stage = 1};
  begin();
  std::thread leaves([&] { meeting.Leave(1); });
  EXPECT_EQ(WaitFor(meeting, 0, next).code(), absl::StatusCode::kUnavailable);  // before or after it has left
  leaves.join();
  EXPECT_EQ(WaitFor(meeting, 0, next).code(), absl::StatusCode::kUnavailable);
  begin();
  std::thread other([&] { EXPECT_EQ(WaitFor(meeting, 1, next), absl::OkStatus()); });
  EXPECT_EQ(WaitFor(meeting, 0, next), absl::OkStatus());
  other.join();
}

// A message to a ps_server --limits, with the layout of round_limits.cc.
struct Request {
  uint32_t kind = 0;  // 0: join
  int32_t worker = 0;
  uint64_t bytes = 0;
};
constexpr uint32_t kRaw = static_cast<uint32_t>(RoundLimit::kRaw);
constexpr uint32_t kFused = static_cast<uint32_t>(RoundLimit::kFused);
constexpr uint64_t kLarge = 64 << 20;

// A member of the job that sends arbitrary bytes.
class RoundStranger {
 public:
  explicit RoundStranger(const std::string& address) {
    const HostPort server = *ParseAddress(address);
    socket_ = *ConnectTcp(server.host, server.port, MonotonicNow() + kSoon);
    const Credentials member = {
        .secret = TestSecret(), .purpose = Purpose::kRoundLimits, .token = server.token};
    EXPECT_EQ(AuthenticateTo(socket_.get(), member, "the server", MonotonicNow() + kSoon), absl::OkStatus());
    EXPECT_EQ(fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) & ~O_NONBLOCK), 0);
    const timeval limit = absl::ToTimeval(2 * kSoon);
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  }
  // False: the connection has ended.
  bool Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  bool Send(const Request& request) {
    return Send(std::string(reinterpret_cast<const char*>(&request), sizeof request));
  }
  // `bytes` bytes, or fewer if the connection ends.
  std::string Receive(size_t bytes) {
    std::string received(bytes, 0);
    const ssize_t n = recv(socket_.get(), received.data(), received.size(), MSG_WAITALL);
    received.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return received;
  }
  // True once it has joined.
  bool Join(int worker) { return Send({.worker = worker}) && Receive(4) == std::string(4, 0); }
  // The server's reason for ending the connection.
  std::string Reason() {
    const std::string length = Receive(4);
    const std::string reason = Receive(1000);
    return length.size() == 4 ? reason : "nothing";
  }
  int fd() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
};

// Joins as soon as the server has released this worker number.
std::unique_ptr<RoundStranger> Joined(const std::string& address, int worker) {
  auto stranger = std::make_unique<RoundStranger>(address);
  for (const MonotonicTime deadline = MonotonicNow() + kSoon; !stranger->Join(worker);) {
    if (MonotonicNow() > deadline) {
      ADD_FAILURE() << "worker " << worker << " was never admitted";
      break;
    }
    stranger = std::make_unique<RoundStranger>(address);
  }
  return stranger;
}

class HostileLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RendezvousOptions options{
        .host = "127.0.0.1", .port = store_->port(), .hosted_elsewhere = true, .secret = TestSecret()};
    options.timeout = 2 * kSoon;
    const auto rendezvous = Rendezvous::Connect(options);
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status();
    const auto address = (*rendezvous)->Get("ps/0/limits", "a ps_server --limits");
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }
  // The server still serves two valid workers, and then exits normally.
  void TearDown() override {
    std::thread other([this] { Work(1); });
    Work(0);
    other.join();
    EXPECT_EQ(server_.Wait(absl::ZeroDuration()), std::nullopt) << server_.Output();
    server_.Kill(SIGTERM);
    EXPECT_EQ(server_.Wait(), 128 + SIGTERM) << server_.Output();
  }
  void Work(int worker) {
    // The number is taken until the server has noticed that the previous connection is closed.
    const MonotonicTime deadline = MonotonicNow() + 2 * kSoon;
    auto client = RoundLimitClient::Connect(address_, TestSecret(), worker, 2 * kSoon);
    while (!client.ok() && MonotonicNow() < deadline) {
      EXPECT_THAT(std::string(client.status().message()), HasSubstr("already"));
      client = RoundLimitClient::Connect(address_, TestSecret(), worker, kSoon);
    }
    ASSERT_TRUE(client.ok()) << client.status();
    std::vector<float> gradient(1000, static_cast<float>(worker + 1)), weights(1000);
    for (const RoundLimit kind : {RoundLimit::kRaw, RoundLimit::kFused}) {
      ASSERT_EQ(client->Run(kind, {gradient.data(), 1000}, {weights.data(), 1000}), absl::OkStatus());
    }
    EXPECT_EQ(weights, std::vector<float>(1000, -1.5f));
  }

  std::unique_ptr<RendezvousServer> store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
  Child server_{{PS_SERVER_BINARY, "--rendezvous", absl::StrCat("tcp://127.0.0.1:", store_->port()),
                 "--workers", "2", "--timeout", "60", "--limits"}};
  std::string address_;
  std::vector<RoundStranger> silent_;
};

TEST_F(HostileLimitsTest, OfTwoDifferentSizesOneIsRejected) {
  for (const uint64_t large : {kLarge, uint64_t{8000}}) {
    const auto one = Joined(address_, 0), other = Joined(address_, 1);
    ASSERT_TRUE(one->Send(Request{kRaw, 0, large}));
    ASSERT_TRUE(other->Send(Request{kRaw, 1, 4}));
    std::thread sends([&] { one->Send(std::string(large, 1)); });
    other->Send(std::string(4, 1));
    pollfd either[] = {{one->fd(), POLLIN, 0}, {other->fd(), POLLIN, 0}};
    EXPECT_GT(poll(either, 2, static_cast<int>(absl::ToInt64Milliseconds(kSoon))), 0);
    RoundStranger& refused = either[0].revents != 0 ? *one : *other;
    EXPECT_THAT(refused.Reason(), AllOf(HasSubstr("a raw round of 4 bytes"),
                                        HasSubstr(absl::StrCat("a raw round of ", large))));
    shutdown(one->fd(), SHUT_RDWR);
    sends.join();
  }
}

TEST_F(HostileLimitsTest, InvalidRequestsGetAReason) {
  const std::vector<std::pair<Request, const char*>> requests = {
      {{.kind = 7, .bytes = 4}, "worker 0 sent an invalid request"},
      {{.kind = 0, .bytes = 4}, "worker 0 sent an invalid request"},
      {{.kind = kRaw, .worker = 1, .bytes = 4}, "worker 0 sent an invalid request"},
      {{.kind = kRaw, .bytes = 0}, "worker 0 sent an invalid request"},
      {{.kind = kFused, .bytes = 6}, "worker 0 sent an invalid request"},
      {{.kind = kRaw, .bytes = uint64_t{1} << 40},
       "a gradient of 1099511627776 bytes; the server has memory for"},
      {{.kind = kFused, .bytes = uint64_t{1} << 63}, "the server has memory for"},
      {{.kind = kFused, .bytes = MakeCpuDevice()->memory()->total / 4 * 4}, "the server has memory for"}};
  for (const auto& [request, error] : requests) {
    const auto stranger = Joined(address_, 0);
    stranger->Send(request);
    EXPECT_THAT(stranger->Reason(), HasSubstr(error));
  }
  for (const auto& [request, error] :
       {std::pair(Request{.worker = 2}, "worker 2 is out of range: there are 2"),
        std::pair(Request{.worker = -1}, "worker -1 is out of range"),
        std::pair(Request{kRaw, 0, 4}, "a connection begins with a join")}) {
    RoundStranger stranger(address_);
    stranger.Send(request);
    EXPECT_THAT(stranger.Reason(), HasSubstr(error));
  }
  const auto first = Joined(address_, 0);
  RoundStranger twin(address_);
  twin.Send(Request{.worker = 0});
  EXPECT_THAT(twin.Reason(), HasSubstr("there is a worker 0 already"));
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    std::string bytes(random() % 5000, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    RoundStranger(address_).Send(bytes);
  }
}

// The other worker still sends in the old round when the next one, which is smaller, begins.
TEST_F(HostileLimitsTest, ALostConnectionEndsTheRoundForTheOther) {
  const auto one = Joined(address_, 0), other = Joined(address_, 1);
  const std::string half(kLarge / 2, 1);
  ASSERT_TRUE(one->Send(Request{kRaw, 0, kLarge}));
  ASSERT_TRUE(other->Send(Request{kRaw, 1, kLarge}));
  // More than socket buffers hold, so the server reads it.
  ASSERT_TRUE(one->Send(half));
  ASSERT_TRUE(other->Send(half));
  shutdown(one->fd(), SHUT_RDWR);
  const auto next = Joined(address_, 0);
  ASSERT_TRUE(next->Send(Request{kRaw, 0, 4}));
  other->Send(half);
  EXPECT_EQ(other->Receive(1), "");
}

// More than the server accepts at once: valid workers are served when the silent ones have timed out.
TEST_F(HostileLimitsTest, SilentConnectionsTimeOut) {
  for (int i = 0; i < 20; ++i) silent_.emplace_back(address_);
}

}  // namespace
}  // namespace psring
