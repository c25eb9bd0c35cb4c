#include "trainer/pipeline/message_times.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

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
  EXPECT_EQ(MessageTimes(1, 2).Of(3, 8, 77), 77);
}

}  // namespace
}  // namespace psring
