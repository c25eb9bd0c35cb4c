// Channels over every transport, with threads as ranks.
#include "ring_worker/groups/channel.h"

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/channel_checks.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

// For a group in host memory.
ChannelOr Connect(ProcessGroup& group, Stream& stream, int from, int to) {
  return ConnectChannel({group, stream}, from, to);
}

Span SpanOf(std::vector<float>& values) { return {values.data(), values.size()}; }

// {backend, transport}
class ChannelTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const BackendRow& backend = BackendNamed(std::get<0>(GetParam()));
    if (!backend.available()) GTEST_SKIP() << "this build has no " << backend.name << ": " << backend.missing;
  }
  static GroupOptions Options(absl::Duration timeout = absl::Seconds(20)) {
    GroupOptions options;
    std::tie(options.backend, options.transport) = GetParam();
    options.timeout = timeout;
    return options;
  }
  static void OnGroups(int ranks, const RankBody& body) { ExpectGroups(ranks, Options(), body); }
};

TEST_P(ChannelTest, MessagesOfAllSizesArriveInOrder) {
  OnGroups(2, [](ProcessGroup& group, Stream& stream) { return CheckMessagesInOrder({group, stream}); });
}

TEST_P(ChannelTest, BothDirectionsOfAPairDoNotWaitForEachOther) {
  OnGroups(2, [](ProcessGroup& group, Stream& stream) { return CheckBothDirections({group, stream}); });
}

TEST_P(ChannelTest, ChannelsWorkBesideTheGroup) {
  OnGroups(3, [](ProcessGroup& group, Stream& stream) {
    return CheckChannelsBesideTheGroup({group, stream});
  });
}

// The receive of the second channel waits for the first one's.
TEST_P(ChannelTest, ChannelsOnOneLaneTakeTurns) {
  OnGroups(2, [](ProcessGroup& group, Stream&) -> absl::Status {
    const std::shared_ptr<Stream> lane = HostDevice().NewStream(StreamKind::kBackground, "messages");
    std::vector<float> first(70000, group.rank() == 0 ? 1 : 0), second(70000, group.rank() == 1 ? 2 : 0);
    std::vector<std::unique_ptr<Channel>> channels;
    for (const int from : {0, 1}) {
      PSRING_ASSIGN_OR_RETURN(auto pair, group.Split(0, group.rank() == from ? 0 : 1));
      PSRING_ASSIGN_OR_RETURN(channels.emplace_back(),
                              Channel::Create(std::move(pair), HostDevice(), "channel", lane));
    }
    EXPECT_EQ(&channels[0]->lane(), &channels[1]->lane());
    PSRING_RETURN_IF_ERROR(channels[0]->Transfer(SpanOf(first)));
    PSRING_RETURN_IF_ERROR(channels[1]->Transfer(SpanOf(second)));
    PSRING_RETURN_IF_ERROR(lane->Synchronize());
    EXPECT_EQ(first, std::vector<float>(70000, 1));
    EXPECT_EQ(second, std::vector<float>(70000, 2));
    return absl::OkStatus();
  });
}

TEST_P(ChannelTest, AbortEndsAPendingReceive) {
  std::latch receiver_ends(1);
  const auto statuses = RunGroups(2, Options(), [&](ProcessGroup& group, Stream& stream) -> absl::Status {
    const ChannelOr channel = Connect(group, stream, 0, 1);
    return UnlessSilent(group.rank() == 0, receiver_ends, [&]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(channel.status());
      std::vector<float> received(10);
      PSRING_RETURN_IF_ERROR((*channel)->Transfer(SpanOf(received)));
      (*channel)->Abort(absl::CancelledError("stopped by a signal"));
      return (*channel)->lane().Synchronize();
    });
  });
  EXPECT_THAT(statuses[1].message(), Has("stopped by a signal"));
}

INSTANTIATE_TEST_SUITE_P(Backends, ChannelTest,
                         testing::Values(std::tuple("native", "shm"), std::tuple("native", "tcp"),
                                         std::tuple("gloo", "tcp")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
                         });

// What the receiver's lane returns if the sender does `send`.
std::string ReceiverSees(const std::string& transport, absl::Duration timeout,
                         const std::function<absl::Status(Channel&, std::latch& receiver_is_done)>& send) {
  GroupOptions options;
  options.transport = transport;
  options.timeout = timeout;
  std::string seen;
  std::latch receiver_is_done(1);
  (void)RunGroups(3, options, [&](ProcessGroup& group, Stream& stream) -> absl::Status {
    const ChannelOr channel = Connect(group, stream, 1, 2);
    const absl::Cleanup done = [&] {
      if (group.rank() == 2) receiver_is_done.count_down();
    };
    PSRING_RETURN_IF_ERROR(channel.status());
    if (group.rank() == 0) return absl::OkStatus();
    if ((*channel)->sends()) return send(**channel, receiver_is_done);
    std::vector<float> values(1000);
    PSRING_RETURN_IF_ERROR((*channel)->Transfer(SpanOf(values)));
    const absl::Status status = (*channel)->lane().Synchronize();
    seen = std::string(status.message());
    return status;
  });
  return seen;
}

TEST(ChannelErrors, NameASilentPeerByItsRankInTheJob) {
  for (const std::string transport : {"shm", "tcp"}) {
    EXPECT_THAT(ReceiverSees(transport, absl::Milliseconds(300),
                             [](Channel&, std::latch& receiver_is_done) {
                               receiver_is_done.wait();
                               return absl::OkStatus();
                             }),
                Has("rank 1"))
        << transport;
  }
}

TEST(ChannelErrors, NameAPeerThatHasLeft) {
  for (const std::string transport : {"shm", "tcp"}) {
    EXPECT_THAT(
        ReceiverSees(transport, absl::Seconds(20), [](Channel&, std::latch&) { return absl::OkStatus(); }),
        Has("rank 1 has left; rank 2 still needs it"))
        << transport;
  }
}

TEST(ChannelErrors, DifferentSizesAreAnErrorAtTheReceiver) {
  for (const std::string transport : {"shm", "tcp"}) {
    EXPECT_THAT(ReceiverSees(transport, absl::Seconds(20),
                             [](Channel& channel, std::latch& receiver_is_done) {
                               std::vector<float> values(999);
                               PSRING_RETURN_IF_ERROR(channel.Transfer(SpanOf(values)));
                               const absl::Status status = channel.lane().Synchronize();
                               receiver_is_done.wait();
                               return status;
                             }),
                testing::AllOf(Has("999"), Has("1000")))
        << transport;
  }
}

TEST(ChannelErrors, AChannelConnectsTwoRanks) {
  const auto statuses = RunGroups(3, {}, [](ProcessGroup& group, Stream&) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(auto all, group.Split(/*color=*/0, /*key=*/0));
    return Channel::Create(std::move(all), HostDevice(), "all").status();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status.message(), Has("connects two ranks, not 3"));
}

}  // namespace
}  // namespace psring
