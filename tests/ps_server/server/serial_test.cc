// When a serial server sends weights (ps_server/modes.md).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/ps_server/server/server_fixture.h"

namespace psring {
namespace {

class SerialTest : public ServerFixture {
 protected:
  void Begin(const std::string& consistency, bool serial = true) {
    ServerFixture::Begin(MakeJob(2, {10, 10}, {.consistency = consistency, .serial = serial}),
                         {.worker_timeout = absl::Seconds(60)});
  }
  std::vector<int> AnswersOf(int worker) { return sinks_[worker]->TakeBuckets(); }

  using Buckets = std::vector<int>;
};

TEST_F(SerialTest, SynchronousWeightsWaitForAllBucketsOfAllWorkers) {
  for (const bool serial : {false, true}) {
    Begin("sync", serial);
    for (const int64_t step : {0, 1, 2}) {
      Push(0, 0, step);
      Push(0, 1, step);
      Push(1, 0, step);
      // Bucket 0 is updated, and all that worker 0 has to send has arrived.
      EXPECT_EQ(AnswersOf(0), serial ? Buckets() : Buckets{0}) << step;
      EXPECT_EQ(AnswersOf(1), serial ? Buckets() : Buckets{0}) << step;
      Push(1, 1, step);
      EXPECT_EQ(AnswersOf(0), (serial ? Buckets{0, 1} : Buckets{1})) << step;
      EXPECT_EQ(AnswersOf(1), (serial ? Buckets{0, 1} : Buckets{1})) << step;
    }
    EXPECT_EQ(server_->stats().pushes, 12);
  }
}

TEST_F(SerialTest, AsynchronousWeightsWaitForTheWorkersOwnGradients) {
  Begin("async");
  for (const int64_t step : {0, 1}) {
    Push(0, 0, step);
    EXPECT_EQ(AnswersOf(0), Buckets());
    Push(0, 1, step);
    EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  }
  EXPECT_EQ(AnswersOf(1), Buckets());
}

TEST_F(SerialTest, ARepeatedPushCountsOnceForItsStep) {
  Begin("sync");
  Push(0, 0);
  Push(0, 1);
  Push(1, 0);
  Reconnect(0);
  Push(0, 0);  // answered before, but the answer did not leave
  Push(0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets());
  Push(1, 1);
  EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  // The weights were lost again, and are sent again at once.
  Reconnect(0);
  Push(0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets{1});
  // The next step is held as a whole.
  Push(0, 0, 1);
  Push(0, 1, 1);
  Push(1, 0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets());
  Push(1, 1, 1);
  EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  EXPECT_EQ(server_->stats().pushes, 8) << "each once";
}

}  // namespace
}  // namespace psring
