// Measuring a connection whose other end follows the protocol, and one that never ends.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "experiments/machine/connections.h"

namespace psring {
namespace {

constexpr double kSeconds = 0.05, kTimeout = 20;

class LinkEnds : public ::testing::Test {
 protected:
  void SetUp() override {
    auto sockets = ConnectOverLoopback().value();
    sockets_ = std::move(sockets);
  }
  int near() const { return sockets_.near.get(); }
  int far() const { return sockets_.far.get(); }
  static bool TookTooLong(const absl::Status& status) {
    return absl::IsDeadlineExceeded(status) && absl::StrContains(status.message(), "has not finished after");
  }

 private:
  SocketPair sockets_;
};

TEST_F(LinkEnds, LatencyAndRateAreMeasuredOverOneConnection) {
  std::thread other([this] {
    EXPECT_TRUE(EchoUntilDone(far(), kTimeout).ok());
    EXPECT_TRUE(SendFor(far(), 2 * kSeconds, kTimeout).ok());
  });
  const auto latency = MeasureLatencyTo(near(), kSeconds, kTimeout);
  const auto rate = ReceiveRate(near(), kSeconds, kSeconds, kTimeout);
  other.join();
  ASSERT_TRUE(latency.ok() && rate.ok()) << latency.status() << rate.status();
  EXPECT_GT(*latency, 0);
  EXPECT_GT(*rate, 0);
}

TEST_F(LinkEnds, AnEndThatNeverStopsSendingIsAnError) {
  std::thread other([this] {
    const std::vector<char> more(4096, 0);
    while (send(far(), more.data(), more.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  const auto rate = ReceiveRate(near(), kSeconds, kSeconds, 0.2);
  shutdown(near(), SHUT_RDWR);
  other.join();
  EXPECT_TRUE(TookTooLong(rate.status())) << rate.status();
}

TEST_F(LinkEnds, AnEndThatNeverStopsAskingIsAnError) {
  std::thread other([this] {
    std::array<char, 4> message{};
    while (send(far(), message.data(), message.size(), MSG_NOSIGNAL) > 0 &&
           recv(far(), message.data(), message.size(), MSG_WAITALL) > 0) {
    }
  });
  const absl::Status status = EchoUntilDone(near(), 0.2);
  shutdown(near(), SHUT_RDWR);
  other.join();
  EXPECT_TRUE(TookTooLong(status)) << status;
}

TEST_F(LinkEnds, AnEndThatTakesDataTooSlowlyIsAnError) {
  std::atomic<bool> ended = false;  // it need not take the rest
  std::thread other([&] {
    char one = 0;
    while (!ended && recv(far(), &one, 1, 0) > 0) {
    }
  });
  const absl::Status status = SendFor(near(), /*seconds=*/1000, 0.2);
  ended = true;
  shutdown(near(), SHUT_RDWR);
  other.join();
  EXPECT_TRUE(TookTooLong(status)) << status;
}

}  // namespace
}  // namespace psring
