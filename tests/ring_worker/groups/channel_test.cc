// Channels over every transport, with threads as ranks.
#include "ring_worker/groups/channel.h"

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/group_checks.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

using ChannelOr = absl::StatusOr<std::unique_ptr<Channel>>;

// From rank `from` to rank `to` of `group`, on which every rank calls it; null for the others.
ChannelOr Connect(ProcessGroup& group, int from, int to) {
  const bool is_end = group.rank() == from || group.rank() == to;
  PSRING_ASSIGN_OR_RETURN(auto pair, group.Split(is_end ? 0 : kNoColor, group.rank() == from ? 0 : 1));
  if (pair == nullptr) return nullptr;
  return Channel::Create(std::move(pair), HostDevice(), absl::StrCat(from, " to ", to));
}

std::vector<float> Message(int number, size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1000 * static_cast<float>(number));
  return values;
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
  static void OnGroups(int ranks, const RankBody& body) {
    for (const absl::Status& status : RunGroups(ranks, Options(), body)) EXPECT_EQ(status, absl::OkStatus());
  }
};

TEST_P(ChannelTest, MessagesOfAllSizesArriveInOrder) {
  OnGroups(2, [](ProcessGroup& group, Stream&) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const auto channel, Connect(group, 1, 0));
    EXPECT_EQ(channel->sends(), group.rank() == 1);
    std::vector<std::vector<float>> messages;
    for (const size_t count : {1, 7, 100, 65536, 3, 300000}) {
      const int number = static_cast<int>(messages.size());
      messages.push_back(channel->sends() ? Message(number, count) : std::vector<float>(count));
    }
    for (std::vector<float>& message : messages) PSRING_RETURN_IF_ERROR(channel->Transfer(SpanOf(message)));
    PSRING_RETURN_IF_ERROR(channel->lane().Synchronize());
    uint64_t bytes = 0;
    for (size_t i = 0; i < messages.size(); ++i) {
      EXPECT_EQ(messages[i], Message(static_cast<int>(i), messages[i].size()));
      bytes += 4 * messages[i].size();
    }
    const Traffic traffic = channel->traffic();
    if (group.info().backend == "native") {
      EXPECT_EQ(channel->sends() ? traffic.payload_tx_bytes : traffic.payload_rx_bytes, bytes);
    }
    return absl::OkStatus();
  });
}

// With one lane for both, each rank would wait for the other's receive.
TEST_P(ChannelTest, BothDirectionsOfAPairDoNotWaitForEachOther) {
  OnGroups(2, [](ProcessGroup& group, Stream&) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const auto forward, Connect(group, 0, 1));
    PSRING_ASSIGN_OR_RETURN(const auto back, Connect(group, 1, 0));
    Channel& first = group.rank() == 0 ? *forward : *back;  // each rank sends first
    Channel& second = group.rank() == 0 ? *back : *forward;
    std::vector<float> sent = Message(group.rank(), 200000), received(200000);
    PSRING_RETURN_IF_ERROR(first.Transfer(SpanOf(sent)));
    PSRING_RETURN_IF_ERROR(second.Transfer(SpanOf(received)));
    PSRING_RETURN_IF_ERROR(second.lane().Synchronize());
    EXPECT_EQ(received, Message(1 - group.rank(), 200000));
    return first.lane().Synchronize();
  });
}

// Three stages pass a value on while the whole group adds up.
TEST_P(ChannelTest, ChannelsWorkBesideTheGroup) {
  OnGroups(3, [](ProcessGroup& group, Stream& stream) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const auto from, Connect(group, 0, 1));
    PSRING_ASSIGN_OR_RETURN(const auto to, Connect(group, 1, 2));
    std::vector<float> value(5000, group.rank() == 0 ? 42 : 0), sum(5000, 1);
    Channel* const receives = group.rank() == 1 ? from.get() : group.rank() == 2 ? to.get() : nullptr;
    Channel* const sends = group.rank() == 0 ? from.get() : group.rank() == 1 ? to.get() : nullptr;
    if (receives != nullptr) PSRING_RETURN_IF_ERROR(receives->Transfer(SpanOf(value)));
    if (receives != nullptr && sends != nullptr) sends->lane().WaitFor(receives->lane().Record());
    if (sends != nullptr) PSRING_RETURN_IF_ERROR(sends->Transfer(SpanOf(value)));
    PSRING_RETURN_IF_ERROR(AddUp(group, stream, sum));
    for (Channel* const channel : {receives, sends}) {
      if (channel != nullptr) PSRING_RETURN_IF_ERROR(channel->lane().Synchronize());
    }
    EXPECT_EQ(value, std::vector<float>(5000, 42));
    EXPECT_EQ(sum, std::vector<float>(5000, 3));
    return absl::OkStatus();
  });
}

TEST_P(ChannelTest, AbortEndsAPendingReceive) {
  std::latch receiver_ends(1);
  const auto statuses = RunGroups(2, Options(), [&](ProcessGroup& group, Stream&) -> absl::Status {
    const ChannelOr channel = Connect(group, 0, 1);
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
  (void)RunGroups(3, options, [&](ProcessGroup& group, Stream&) -> absl::Status {
    const ChannelOr channel = Connect(group, 1, 2);
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
