#include "experiments/processes/interrupt.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

namespace psring {
namespace {

class InterruptTest : public testing::Test {
 protected:
  void SetUp() override { signal(SIGINT, SIG_DFL); }
  void TearDown() override {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  }
  static bool Readable(const Interrupt& interrupt) {
    pollfd fd = {interrupt.fd(), POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }
};

TEST_F(InterruptTest, ReportsTheFirstSignal) {
  const Interrupt interrupt;
  EXPECT_TRUE(interrupt.Check().ok());
  EXPECT_EQ(interrupt.signal(), 0);
  for (const int signal : {SIGTERM, SIGINT}) kill(getpid(), signal);
  EXPECT_TRUE(Readable(interrupt));
  EXPECT_EQ(interrupt.signal(), SIGTERM);
  EXPECT_EQ(interrupt.Check().message(), "interrupted (SIGTERM)");
}

TEST_F(InterruptTest, IgnoredSighupAndSigintStayIgnored) {
  for (const int ignored : {SIGHUP, SIGINT}) signal(ignored, SIG_IGN);
  {
    const Interrupt interrupt;
    for (const int ignored : {SIGHUP, SIGINT}) kill(getpid(), ignored);
    EXPECT_FALSE(Readable(interrupt));
    EXPECT_TRUE(interrupt.Check().ok());
    kill(getpid(), SIGTERM);
    EXPECT_EQ(interrupt.signal(), SIGTERM);
  }
  for (const int ignored : {SIGHUP, SIGINT}) EXPECT_EQ(signal(ignored, SIG_DFL), SIG_IGN);
}

}  // namespace
}  // namespace psring
