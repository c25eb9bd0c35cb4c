#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/deadline.h"
#include "common/device/device.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls.h"
#include "ps_server/bench/round_limits.h"
#include "ps_server/bench/wire_rate.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(10);

// Element `i` of the gradient of `worker`: small whole numbers, so that sums are exact.
float Gradient(int worker, size_t i) { return static_cast<float>(worker + 1 + static_cast<int>(i % 5)); }

class RoundLimitTest : public testing::TestWithParam<std::tuple<int, size_t, const char*>> {};

TEST_P(RoundLimitTest, ARawRoundReturnsTheUpdatedWeights) {
  const auto [workers, count, tls] = GetParam();
  const JobSecret secret = *WithTls(TestSecret(), tls);
  const auto server = RoundLimitServer::Start("127.0.0.1", secret, workers, kSoon);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::thread> threads;
  std::vector<absl::Status> outcomes(workers);
  std::vector<std::vector<float>> weights(workers, std::vector<float>(count, 77));
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker, count = count] {
      auto client = RoundLimitClient::Connect((*server)->address(), secret, worker, kSoon);
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
                                          testing::Values<size_t>(1, 1000, (64 << 10) * 3 + 5),
                                          testing::Values("", "auto")));

TEST(RoundLimitServerTest, AMissingWorkerIsAnErrorAtTheTimeout) {
  const auto server = RoundLimitServer::Start("127.0.0.1", TestSecret(), 2, kSoon);
  ASSERT_TRUE(server.ok()) << server.status();
  auto client =
      RoundLimitClient::Connect((*server)->address(), TestSecret(), 0, /*timeout=*/absl::Milliseconds(300));
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> gradient(10), weights(10);
  EXPECT_FALSE(client->Run(RoundLimit::kRaw, {gradient.data(), 10}, {weights.data(), 10}).ok());
}

// A request, with the layout of round_limits.cc.
struct Request {
  uint64_t kind = 0;
  uint64_t bytes = 0;
};
constexpr uint64_t kRaw = static_cast<uint64_t>(RoundLimit::kRaw);
constexpr uint64_t kFused = static_cast<uint64_t>(RoundLimit::kFused);

// A member of the job that sends arbitrary bytes.
class RoundStranger {
 public:
  RoundStranger(const std::string& address, uint64_t worker) {
    const HostPort server = *ParseAddress(address);
    socket_ = *ConnectTcp(server.host, server.port, MonotonicNow() + kSoon);
    const Credentials member = {
        .secret = TestSecret(), .purpose = Purpose::kRoundLimits, .token = server.token};
    EXPECT_EQ(AuthenticateTo(socket_.get(), member, "the server", MonotonicNow() + kSoon, worker),
              absl::OkStatus());
    EXPECT_EQ(fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) & ~O_NONBLOCK), 0);
    const timeval limit = absl::ToTimeval(2 * kSoon);
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  }
  void Send(const std::string& bytes) const {
    (void)send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Send(const Request& request) const {
    Send(std::string(reinterpret_cast<const char*>(&request), sizeof request));
  }
  // The server ends the connection without an answer.
  bool IsEnded() const {
    char byte = 0;
    const ssize_t n = recv(socket_.get(), &byte, 1, 0);
    return n == 0 || (n < 0 && errno == ECONNRESET);
  }
  void Leave() const { shutdown(socket_.get(), SHUT_RDWR); }

 private:
  FileDescriptor socket_;
};

// Two members of a job, as workers.
class HostileLimitsTest : public ::testing::Test {
 protected:
  void ExpectBothEnded() const {
    EXPECT_TRUE(one.IsEnded());
    EXPECT_TRUE(other.IsEnded());
  }

  const std::unique_ptr<RoundLimitServer> server =
      *RoundLimitServer::Start("127.0.0.1", TestSecret(), 2, kSoon);
  const RoundStranger one{server->address(), 0}, other{server->address(), 1};
};

TEST_F(HostileLimitsTest, DifferentRequestsEndAllConnections) {
  one.Send(Request{kRaw, 64 << 20});
  other.Send(Request{kRaw, 4});
  ExpectBothEnded();
}

TEST_F(HostileLimitsTest, ALostConnectionEndsTheOthers) {
  one.Send(Request{kRaw, 64 << 20});
  other.Send(Request{kRaw, 64 << 20});
  one.Send(std::string(1 << 20, 1));
  one.Leave();
  EXPECT_TRUE(other.IsEnded());
}

TEST_F(HostileLimitsTest, OnlyTheFirstConnectionOfEachWorkerIsKept) {
  for (const uint64_t worker : {uint64_t{0}, uint64_t{2}, UINT64_MAX}) {
    EXPECT_TRUE(RoundStranger(server->address(), worker).IsEnded()) << worker;
  }
  one.Send(Request{kFused, 4});
  other.Send(Request{kFused, 4});
  EXPECT_FALSE(one.IsEnded()) << "the round is answered";
  EXPECT_FALSE(other.IsEnded());
}

TEST(RoundLimitServerTest, InvalidRequestsEndAllConnections) {
  for (const Request& request :
       {Request{7, 4}, Request{kRaw, 0}, Request{kFused, 6}, Request{kRaw, uint64_t{1} << 40},
        Request{kFused, uint64_t{1} << 63}, Request{kFused, MakeCpuDevice()->memory()->total / 4 * 4}}) {
    const auto server = *RoundLimitServer::Start("127.0.0.1", TestSecret(), 2, kSoon);
    const RoundStranger one(server->address(), 0), other(server->address(), 1);
    one.Send(request);
    other.Send(request);
    EXPECT_TRUE(one.IsEnded() && other.IsEnded()) << request.kind << " " << request.bytes;
  }
}

TEST(WireRate, IsThatOfAllWorkersTogetherForEachWire) {
  for (const char* wire : {"grpc", "stream"}) {
    for (const int workers : {1, 3}) {
      SCOPED_TRACE(testing::Message() << wire << ", " << workers << " workers");
      const MonotonicTime begin = MonotonicNow();
      const absl::StatusOr<double> rate = MeasureWireRate(wire, workers, absl::ZeroDuration());
      ASSERT_TRUE(rate.ok()) << rate.status();
      // Three rounds of 8 MiB per worker were timed within the call.
      const double bytes = 3 * 8.0 * (1 << 20) * workers;
      EXPECT_GE(*rate, bytes / absl::ToDoubleSeconds(MonotonicNow() - begin));
      EXPECT_LT(*rate, 1e12);
    }
  }
}

TEST(WireRate, MeasuresAsLongAsRequested) {
  const MonotonicTime begin = MonotonicNow();
  ASSERT_TRUE(MeasureWireRate("grpc", 1, absl::Milliseconds(50)).ok());
  EXPECT_GE(MonotonicNow() - begin, absl::Milliseconds(50));
}

}  // namespace
}  // namespace psring
