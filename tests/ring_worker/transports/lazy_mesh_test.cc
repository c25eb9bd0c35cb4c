// A mesh in which only the pairs are connected that exchange anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <barrier>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/ring_worker/bare_rank.h"

namespace psring {
namespace {

using testing::AllOf;
using testing::AnyOf;

// Of this process: sockets with a peer. Listeners are not counted.
int ConnectedSockets() {
  std::set<ino_t> sockets;  // peers have descriptors of the one that wakes a rank
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    sockaddr_storage peer;
    socklen_t length = sizeof peer;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    struct stat file;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || fstat(fd, &file) != 0) continue;
    sockets.insert(file.st_ino);
  }
  return static_cast<int>(sockets.size());
}

std::vector<int> RingNeighbours(const TransportInfo& info) {
  std::vector<int> peers = {(info.rank + 1) % info.size};
  if (info.size > 2) peers.push_back((info.rank + info.size - 1) % info.size);
  return peers;
}

std::vector<int> Nobody(const TransportInfo&) { return {}; }

absl::Status AllReduce(ProcessGroup& group, Stream& stream) {
  constexpr size_t count = 100'000;
  std::vector<float> data(count, static_cast<float>(group.rank()));
  PSRING_RETURN_IF_ERROR(AddUp(group, stream, data));
  const int pairs = group.size() * (group.size() - 1) / 2;
  EXPECT_EQ(data, std::vector<float>(count, static_cast<float>(pairs)));
  return absl::OkStatus();
}

class LazyMeshTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Both, LazyMeshTest, testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

// Two neighbours, each with a socket for control, and one for payload or to pass shared memory. A rank also
// has both ends of the local socket that wakes it.
TEST_P(LazyMeshTest, ARankOfARingHoldsFourSockets) {
  constexpr int kRanks = 8;
  const int before = ConnectedSockets();
  std::barrier<> all_ranks(kRanks);
  // A rank may still close a connection by which it asked another one to connect.
  const auto all_have_four = [&] { return ConnectedSockets() - before == (4 + 2) * kRanks; };
  OnRanks(kRanks, [&](FakeRendezvous& rendezvous, int rank) {
    auto group = MakeProcessGroup(rendezvous, {.algorithm = "ring", .transport = GetParam()});
    ASSERT_TRUE(group.ok()) << group.status();
    all_ranks.arrive_and_wait();
    if (rank == 0) {
      EXPECT_TRUE(Eventually(all_have_four)) << "before the first call";
    }
    all_ranks.arrive_and_wait();
    const auto device = MakeCpuDevice();
    const auto stream = device->NewStream(StreamKind::kCompute, "test");
    std::vector<float> data(8000), part(1000);
    const Span all = {data.data(), data.size()}, mine = {part.data(), part.size()};
    EXPECT_EQ(AllReduce(**group, *stream), absl::OkStatus());
    EXPECT_EQ((*group)->Barrier(*stream), absl::OkStatus());
    EXPECT_EQ((*group)->Broadcast(all, 3, *stream), absl::OkStatus());
    EXPECT_EQ((*group)->ReduceScatter(all, mine, ReduceOp::kSum, *stream), absl::OkStatus());
    EXPECT_EQ((*group)->AllGather(mine, all, *stream), absl::OkStatus());
    EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
    all_ranks.arrive_and_wait();
    if (rank == 0) {
      EXPECT_TRUE(Eventually(all_have_four)) << "after all collectives";
    }
    all_ranks.arrive_and_wait();
  });
}

TEST(MeshTest, KnowsItsRegisteredMemory) {
  const auto transports = MakeTransports("shm", 2);
  Transport& transport = *transports[0];
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const Buffer shared = *device->AllocateShared(4096), other = *device->Allocate(4096);
  const auto* const data = static_cast<const std::byte*>(shared.data());
  EXPECT_FALSE(transport.IsRegistered(data));
  ASSERT_EQ(transport.Register(shared), absl::OkStatus());
  ASSERT_EQ(transport.Register(other), absl::OkStatus()) << "it has no effect";
  EXPECT_TRUE(transport.IsRegistered(data));
  EXPECT_TRUE(transport.IsRegistered(data + 4095));
  EXPECT_FALSE(transport.IsRegistered(data + 4096));
  EXPECT_FALSE(transport.IsRegistered(other.data()));
  transport.Unregister(shared);
  EXPECT_FALSE(transport.IsRegistered(data));
}

// Every pair is connected by the first call that uses it, from whichever side.
TEST_P(LazyMeshTest, PairsThatAreNotConnectedAreConnectedAtTheirFirstTransfer) {
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce)) {
    for (const int ranks : {2, 3, 6}) {
      const auto statuses = RunRanksToStatus(
          MakeTransports(GetParam(), ranks, Nobody),
          [&](int) { return GroupOptions{.algorithm = algorithm}; },
          [&](ProcessGroup& group, Stream& stream) {
            const std::unique_ptr<Device> device = MakeCpuDevice();
            // Registered before there is anybody to tell.
            const Buffer shared = *device->AllocateShared(sizeof(float) << 18);
            PSRING_RETURN_IF_ERROR(dynamic_cast<MemoryRegistration&>(group).Register(shared));
            for (int root = 0; root < group.size(); ++root) {
              std::vector<float> data(1000, static_cast<float>(group.rank()));
              PSRING_RETURN_IF_ERROR(group.Broadcast({data.data(), data.size()}, root, stream));
              PSRING_RETURN_IF_ERROR(stream.Synchronize());
              EXPECT_EQ(data, std::vector<float>(1000, static_cast<float>(root)));
            }
            const Span span = shared.span();
            auto* const values = static_cast<float*>(span.data);
            std::fill_n(values, span.count, 1.0f);
            PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
            PSRING_RETURN_IF_ERROR(stream.Synchronize());
            EXPECT_EQ(values[0], static_cast<float>(group.size()));
            EXPECT_EQ(values[span.count - 1], static_cast<float>(group.size()));
            PSRING_RETURN_IF_ERROR(AllReduce(group, stream));
            dynamic_cast<MemoryRegistration&>(group).Unregister(shared);
            return stream.Synchronize();
          });
      for (const absl::Status& status : statuses)
        EXPECT_EQ(status, absl::OkStatus()) << algorithm << ", " << ranks << " ranks";
    }
  }
}

TEST_P(LazyMeshTest, ADeadRankIsNamedByRanksThatAreNotConnectedWithIt) {
  HalfMesh mesh(8, {3}, {.transport = GetParam(), .first_peers = RingNeighbours});
  mesh.bare[3].Die();
  const auto statuses = mesh.AddUp({.timeout = absl::Minutes(10)});
  ASSERT_EQ(statuses.size(), 7u);
  for (const absl::Status& status : statuses)
    EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, "rank 3 closed its connection"));
}

TEST_P(LazyMeshTest, ASilentRankIsNamedByRanksThatAreNotConnectedWithIt) {
  HalfMesh mesh(8, {3}, {.transport = GetParam(), .first_peers = RingNeighbours});
  const auto statuses = mesh.AddUp({.timeout = absl::Milliseconds(1500)});
  ASSERT_EQ(statuses.size(), 7u);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(status), Has("for rank 3 to ", "; rank 3 does not respond"));
  }
}

TEST_P(LazyMeshTest, AnAbortReachesRanksThroughOthers) {
  auto ranks = MakeTransports(GetParam(), 8, RingNeighbours);
  OnRanks(8, [&](int rank) {
    if (rank == 5) return ranks[rank]->Abort(absl::CancelledError("the user pressed Ctrl-C"));
    EXPECT_EQ(ReceiveFrom((rank + 7) % 8, *ranks[rank], absl::Minutes(10)),
              absl::CancelledError("rank 5 gave up: the user pressed Ctrl-C"));
  });
}

// The reason reaches a rank that connects only after the other one has given up.
TEST_P(LazyMeshTest, APeerThatConnectsLaterLearnsWhyTheOtherGaveUp) {
  auto ranks = MakeTransports(GetParam(), 2, Nobody);
  ranks[0]->Abort(absl::CancelledError("the user pressed Ctrl-C"));
  EXPECT_EQ(ReceiveFrom(0, *ranks[1], absl::Minutes(10)),
            absl::CancelledError("rank 0 gave up: the user pressed Ctrl-C"));
}

// Short messages are copied, so a send needs only the peer's process, not its next call.
TEST_P(LazyMeshTest, ASendToAHigherRankCompletesBeforeItsReceive) {
  auto ranks = MakeTransports(GetParam(), 2, Nobody);
  std::vector<float> sent = {1, 2, 3, 4}, got(4);
  ranks[0]->BeginCall(kTestCall);
  ranks[0]->Send(1, {}, {sent.data(), 4}, {.copy = true});
  EXPECT_EQ(ranks[0]->Wait({}, absl::Seconds(30)), absl::OkStatus());
  ranks[1]->BeginCall(kTestCall);
  ranks[1]->Receive({}, {got.data(), 4}, ReduceOp::kSum, nullptr, {0});
  EXPECT_EQ(ranks[1]->Wait({}, absl::Seconds(30)), absl::OkStatus());
  EXPECT_EQ(got, sent);
}

TEST_P(LazyMeshTest, ARankThatTakesNoPartIsNamedAtTheTimeout) {
  auto ranks = MakeTransports(GetParam(), 3, Nobody);
  EXPECT_THAT(Text(ReceiveFrom(2, *ranks[0], absl::Milliseconds(100))),
              AllOf(Has("for rank 2 to send", "rank 2 does not respond"), Lacks("rank 1")));
}

// Rank 1 leaves before its first transfer with rank 0, which asks it to connect, and with rank 2, which
// connects, sometimes just in time.
TEST_P(LazyMeshTest, ARankThatEndsBeforeItConnectsIsNamedAtOnce) {
  OnRanksOfAStore(3, [](Rendezvous& rendezvous, int rank) {
    auto transport = *MakeMeshTransport(rendezvous, {.transport = GetParam()});
    if (rank == 1) return;
    const absl::Status status = ReceiveFrom(1, *transport, absl::Minutes(10));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Text(status), AnyOf(Has("rank 1 has left"), Has("rank 1 (", "waited for it to connect")));
  });
}

TEST(MeshScheduleTest, RanksWithDifferentAlgorithmsAreRejectedWithBothNames) {
  OnRanks(2, [](FakeRendezvous& rendezvous, int rank) {
    EXPECT_THAT(MakeProcessGroup(rendezvous, {.algorithm = rank == 0 ? "ring" : "star"}).status(),
                Fails(absl::StatusCode::kFailedPrecondition, "uses algorithm ", "ring", "star"));
  });
}

}  // namespace
}  // namespace psring
