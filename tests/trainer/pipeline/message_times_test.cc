#include "trainer/pipeline/message_times.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

constexpr int64_t kAhead = 1'000'000;  // of the second rank's clock

// Two micro-batches between two stages: activations, then gradients. Each takes 30 ns and arrives at `until`.
MessageEnds Message(int64_t sender_ready, int64_t receiver_ready, int64_t until, int64_t sender_ahead = 0,
                    int64_t receiver_ahead = 0) {
  const int64_t of_sender = 2 * kAhead + sender_ahead, of_receiver = 2 * kAhead + receiver_ahead;
  return {.send = {sender_ready + of_sender, until + of_sender},
          .receive = {receiver_ready + of_receiver, until + of_receiver}};
}

TEST(MessageTimes, AMessageBeginsWhenTheLaterEndIsReady) {
  const std::vector<MessageEnds> ends = {Message(100, 20, 130), Message(160, 190, 220), Message(300, 10, 330),
                                         Message(300, 400, 430)};
  EXPECT_EQ(TransferTimes(ends, 2), std::vector<int64_t>(4, 30));
}

TEST(MessageTimes, ASenderThatIsDoneWhenTheSystemHasItsBytesDoesNotEndTheMessage) {
  std::vector<MessageEnds> ends = {Message(100, 20, 130), Message(300, 10, 330)};
  for (MessageEnds& of : ends) of.send.end_ns = of.send.begin_ns + 1;
  EXPECT_EQ(TransferTimes(ends, 1), std::vector<int64_t>(2, 30));
}

TEST(MessageTimes, ClocksOfTwoComputersMayDiffer) {
  for (const int64_t ahead : {kAhead, -kAhead}) {
    const std::vector<MessageEnds> ends = {Message(100, 20, 130, 0, ahead), Message(300, 10, 330, ahead, 0)};
    EXPECT_EQ(TransferTimes(ends, 1), std::vector<int64_t>(2, 30)) << ahead;
  }
}

TEST(MessageTimes, OfAnEmptyMicroBatchNothingIsKnown) {
  EXPECT_EQ(TransferTimes({Message(100, 20, 130), {}, Message(300, 10, 330), {}}, 2),
            (std::vector<int64_t>{30, 0, 30, 0}));
}

TEST(MessageTimes, BeforeTheFirstExchangeTheMeasuredTimeCounts) {
  EXPECT_EQ(MessageTimes(1, 2, 4).Of(3, 8, 77), 77);
}

// Two micro-batches, of which the second has no samples.
TEST(MessageTimes, AfterTheFirstStepsTheirMeanPerSampleCounts) {
  const auto statuses = RunGroups(2, {}, [](ProcessGroup& group, Stream&) -> absl::Status {
    const std::unique_ptr<Device> device = MakeCpuDevice();
    PSRING_ASSIGN_OR_RETURN(const auto replica, ReplicaExchange::Create(group, *device));
    MessageTimes times(1, 2, /*warmup_steps=*/10);
    for (const int64_t ns : {300, 40, 60, 80, 1000}) {  // the first step is slow, the last is not shared
      std::vector<MessageEnds> own = {Message(100, 20, 100 + ns), {}, Message(5000, 10, 5000 + ns), {}};
      for (const bool gradient : {false, true}) {  // of which rank 1 has the send
        MessageEnds& ends = own[gradient ? 2 : 0];
        (gradient == (group.rank() == 1) ? ends.receive : ends.send) = {};
      }
      PSRING_RETURN_IF_ERROR(times.Share(*replica, 2, own, {4, 0}));
      for (const size_t message : {size_t{0}, size_t{2}})
        EXPECT_EQ(times.Of(message, 4, 2000), ns < 1000 ? ns : 60);
    }
    EXPECT_EQ(times.Of(0, 2, 2000), 30);
    EXPECT_EQ(times.Of(0, 4, 50), 50) << "at most what was measured";
    EXPECT_EQ(times.Of(1, 4, 77), 77) << "never sent";
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(MessageTimes, NoMoreStepsThanThoseOfTheWarmUpAreShared) {
  const auto statuses = RunGroups(2, {}, [](ProcessGroup& group, Stream&) -> absl::Status {
    const std::unique_ptr<Device> device = MakeCpuDevice();
    PSRING_ASSIGN_OR_RETURN(const auto replica, ReplicaExchange::Create(group, *device));
    for (const auto& [warmup_steps, shared] : {std::pair(0, 1), {1, 1}, {2, 2}, {3, 3}, {50, 4}}) {
      MessageTimes times(1, 1, warmup_steps);
      for (int step = 0; step < 6; ++step) {
        const uint64_t before = group.traffic().payload_tx_bytes;
        std::vector<MessageEnds> own = {Message(100, 20, 130), Message(300, 10, 330)};
        PSRING_RETURN_IF_ERROR(times.Share(*replica, 2, own, {4}));
        EXPECT_EQ(group.traffic().payload_tx_bytes > before, step < shared) << warmup_steps << " " << step;
        EXPECT_EQ(times.Of(0, 4, 2000), 30) << warmup_steps << " " << step;
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace psring
