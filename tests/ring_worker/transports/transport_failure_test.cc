// Failures of ranks, and the errors of the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/net/tcp_socket.h"
#include "ring_worker/transports/control_connection.h"
#include "ring_worker/transports/frame.h"
#include "tests/has.h"
#include "tests/ring_worker/bare_rank.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

using testing::AllOf;
using testing::AnyOf;

class EveryTransportTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, EveryTransportTest, testing::Values("tcp", "tls", "shm", "mixed"),
                         [](const auto& info) { return info.param; });

TEST_P(EveryTransportTest, ASilentPeerIsNamedAtTheTimeoutByAllRanks) {
  auto ranks = MakeTransports(GetParam(), 3);
  const MonotonicTime begin = MonotonicNow();
  const absl::Status status = ReceiveFrom(2, *ranks[0], absl::Milliseconds(100));
  EXPECT_GE(MonotonicNow() - begin, absl::Milliseconds(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(status), AllOf(Has("rank 0 waited", "for rank 2", "call 0"), Lacks("rank 1")));
  // Errors persist, and reach ranks that wait for other peers.
  EXPECT_EQ(ranks[0]->Wait({}, absl::Seconds(30)), status);
  EXPECT_THAT(Text(ReceiveFrom(2, *ranks[1])), Has("rank 0 gave up", "for rank 2"));
}

TEST_P(EveryTransportTest, APeerThatLeavesIsNamed) {
  auto ranks = MakeTransports(GetParam(), 2);
  std::vector<float> data(4);
  ranks[0]->BeginCall(kTestCall);
  ranks[0]->Receive({}, {data.data(), 4}, ReduceOp::kSum, data.data(), {0, 1});
  std::latch receiving(1);
  std::thread leaver([&] {
    receiving.wait();
    ranks[1].reset();
  });
  receiving.count_down();
  const absl::Status status = ranks[0]->Wait({}, absl::Seconds(30));
  leaver.join();
  EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, "rank 1 has left"));
}

TEST_P(EveryTransportTest, APeerMayLeaveAfterItsPart) {
  auto ranks = MakeTransports(GetParam(), 3);
  std::vector<float> sent = {1, 2, 3, 4}, got(4), other(4);
  std::latch has_left(1);
  std::thread sender([&] {
    ranks[1]->BeginCall(kTestCall);
    ranks[1]->Send(0, {}, {sent.data(), 4});
    EXPECT_EQ(ranks[1]->Wait({}, absl::Seconds(30)), absl::OkStatus());
    ranks[1].reset();
    has_left.count_down();
  });
  ranks[0]->BeginCall(kTestCall);
  sender.join();
  ranks[0]->Receive({}, {got.data(), 4}, ReduceOp::kSum, nullptr, {1});
  ranks[0]->Receive({}, {other.data(), 4}, ReduceOp::kSum, nullptr, {2});
  std::thread late([&] {
    has_left.wait();
    ranks[2]->BeginCall(kTestCall);
    ranks[2]->Send(0, {}, {sent.data(), 4});
    EXPECT_EQ(ranks[2]->Wait({}, absl::Seconds(30)), absl::OkStatus());
  });
  EXPECT_EQ(ranks[0]->Wait({}, absl::Seconds(30)), absl::OkStatus());
  late.join();
  EXPECT_EQ(got, sent);
  EXPECT_EQ(other, sent);
}

TEST_P(EveryTransportTest, AbortWakesAWaitingRankAndItsPeers) {
  auto ranks = MakeTransports(GetParam(), 2);
  std::latch receiving(2);
  std::thread aborter([&] {
    receiving.wait();
    ranks[0]->Abort(absl::CancelledError("the user pressed Ctrl-C"));
  });
  std::thread peer([&] {
    receiving.count_down();
    EXPECT_EQ(ReceiveFrom(0, *ranks[1]), absl::CancelledError("rank 0 gave up: the user pressed Ctrl-C"));
  });
  receiving.count_down();
  EXPECT_EQ(ReceiveFrom(1, *ranks[0]), absl::CancelledError("the user pressed Ctrl-C"));
  EXPECT_FALSE(ranks[0]->Wait({}, absl::Seconds(30)).ok());
  aborter.join();
  peer.join();
}

TEST_P(EveryTransportTest, BuffersOfDifferentLengthsAreRejectedWithBothLengths) {
  for (const auto& [a, b] : {std::pair(1000, 1001), std::pair(0, 3), std::pair(1, 500000)}) {
    const auto statuses = RunRanksToStatus(
        GetParam(), 2, [](int) { return GroupOptions{.algorithm = "ring"}; },
        [a = a, b = b](ProcessGroup& group, Stream& stream) {
          std::vector<float> data(group.rank() == 0 ? a : b);
          return AddUp(group, stream, data);
        });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(Text(status),
                  Has(absl::StrCat("ring all_reduce (sum) of ", a, " float32"),
                      absl::StrCat("ring all_reduce (sum) of ", b, " float32"), "rank 0", "rank 1"));
    }
  }
}

TEST_P(EveryTransportTest, DifferentAlgorithmsAreRejectedByName) {
  const auto statuses = RunRanksToStatus(
      GetParam(), 2, [](int rank) { return GroupOptions{.algorithm = rank == 0 ? "ring" : "star"}; },
      [](ProcessGroup& group, Stream& stream) {
        std::vector<float> data(1000);
        return AddUp(group, stream, data);
      });
  for (const absl::Status& status : statuses)
    EXPECT_THAT(Text(status), Has("ring all_reduce", "star all_reduce"));
}

TEST_P(EveryTransportTest, DifferentCallsAreReported) {
  const auto statuses = RunRanksToStatus(
      GetParam(), 2, [](int) { return GroupOptions{.algorithm = "ring"}; },
      [](ProcessGroup& group, Stream& stream) {
        std::vector<float> data(100);
        const Span span = {data.data(), data.size()};
        PSRING_RETURN_IF_ERROR(group.rank() == 0 ? group.Broadcast(span, 0, stream)
                                                 : group.AllReduce(span, span, ReduceOp::kSum, stream));
        PSRING_RETURN_IF_ERROR(stream.Synchronize());
        PSRING_RETURN_IF_ERROR(group.Barrier(stream));
        return stream.Synchronize();
      });
  for (const absl::Status& status : statuses) {
    // The sender of a broadcast returns when its bytes are sent, and gets the error in its next call.
    EXPECT_THAT(Text(status), AllOf(Has("ring all_reduce (sum) of 100 float32"),
                                    AnyOf(Has("broadcast (sum) of 100"), Has("of 0 float32"))));
  }
}

TEST_P(EveryTransportTest, AllRanksReportARankThatHangs) {
  std::latch others_end(3);
  const auto statuses = RunRanksToStatus(
      GetParam(), 4,
      // Rank 3 receives from the silent rank, so its timeout is the first in a real job too.
      [](int rank) { return GroupOptions{.timeout = absl::Milliseconds(rank == 3 ? 200 : 20000)}; },
      [&](ProcessGroup& group, Stream& stream) {
        std::vector<float> data(100000);
        return UnlessSilent(group.rank() == 2, others_end, [&] { return AddUp(group, stream, data); });
      });
  for (int rank : {0, 1, 3}) EXPECT_THAT(Text(statuses[rank]), Has("rank 2")) << rank;
}

class MeshTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Both, MeshTest, testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(MeshTest, ADeadRankIsNamedEvenByRanksThatWaitForOthers) {
  HalfMesh mesh(4, {2}, {.transport = GetParam()});
  mesh.bare[2].Die();
  for (const absl::Status& status : mesh.AddUp({}))
    EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, "rank 2 closed its connection"));
}

// Every rank waits for its predecessor, and all deadlines pass at about the same time.
TEST_P(MeshTest, OnlyTheRankThatDoesNotRespondIsNamedAsSuch) {
  HalfMesh mesh(4, {2}, {.transport = GetParam()});
  for (const absl::Status& status : mesh.AddUp({.timeout = absl::Milliseconds(1500)})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(status), Has("for rank 2 to ", "; rank 2 does not respond"));
  }
}

TEST_P(MeshTest, ARankThatNobodyRespondsToSaysSo) {
  HalfMesh mesh(3, {1, 2}, {.transport = GetParam()});
  EXPECT_THAT(Text(ReceiveFrom(2, *mesh.transports[0], absl::Milliseconds(100))),
              Has("for rank 2 to send", "no other rank responds to rank 0"));
}

TEST(TcpTransportTest, AnInvalidRankInAControlMessageIsRejected) {
  HalfMesh mesh(2, {1});
  SendNotice(*mesh.bare[1].by_rank[0].control, {absl::StatusCode::kDeadlineExceeded, "late", 2});
  EXPECT_THAT(Text(ReceiveFrom(1, *mesh.transports[0])),
              Has("rank 1 waits for rank 2, which does not exist"));
}

TEST(TcpTransportTest, TextsOfPeersHaveOneLineWithoutControlCharacters) {
  for (const bool in_a_frame : {false, true}) {
    HalfMesh mesh(2, {1});
    const PeerConnections& peer = mesh.bare[1].by_rank[0];
    if (in_a_frame) {
      const FrameHeader header = {.call = {.operation = "\x1b[2J\nfake"}};
      ASSERT_EQ(send(peer.data.fd(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
    } else {
      SendNotice(*peer.control, {absl::StatusCode::kInternal, "\x1b[2J\nfake"});
    }
    EXPECT_THAT(Text(ReceiveFrom(1, *mesh.transports[0])), Has("\\x1b[2J\\x0afake"));
  }
}

TEST(TcpTransportTest, InvalidFramesAreRejectedWithTheSender) {
  HalfMesh mesh(2, {1});
  const std::string garbage(1000, 'x');
  ASSERT_EQ(send(mesh.bare[1].by_rank[0].data.fd(), garbage.data(), garbage.size(), 0), garbage.size());
  EXPECT_THAT(ReceiveFrom(1, *mesh.transports[0]),
              Fails(absl::StatusCode::kDataLoss, "rank 1", "78787878", "52535032"));
}

TEST_P(MeshTest, APeerThatNeverReadsIsNamedAtTheTimeout) {
  HalfMesh mesh(2, {1}, {.transport = GetParam()});
  std::vector<float> data(16 << 10);
  mesh.transports[0]->BeginCall({.elements = data.size(), .operation = "test"});
  // More than socket buffers or shared slots hold.
  for (int i = 0; i < 256; ++i) mesh.transports[0]->Send(1, {}, {data.data(), data.size()});
  EXPECT_THAT(Text(mesh.transports[0]->Wait({}, absl::Milliseconds(100))), Has("for rank 1 to receive"));
}

TEST(TcpTransportTest, PayloadInPiecesOfOddLengthIsAdded) {
  HalfMesh source(2, {1}), sink(2, {1});
  // The bytes of one transport are passed to the other in small pieces, each when the previous one was read.
  std::vector<float> sent = {0.5f, 1.5f, -2.0f, 1e-8f, 3e8f}, got = {1, 1, 1, 1, 1};
  source.transports[0]->BeginCall(kTestCall);
  source.transports[0]->Send(1, {}, {sent.data(), sent.size()});
  ASSERT_TRUE(source.transports[0]->Wait({}, absl::Seconds(30)).ok());
  const std::atomic<pid_t> receiver = gettid();
  std::atomic<bool> received = false;
  std::thread relay([&] {
    char piece[7];
    ssize_t n;
    while ((n = recv(source.bare[1].by_rank[0].data.fd(), piece, sizeof piece, 0)) > 0) {
      ASSERT_EQ(send(sink.bare[1].by_rank[0].data.fd(), piece, n, 0), n);
      if (!received) {
        EXPECT_TRUE(AwaitSleepOf(receiver));
      }
    }
  });
  sink.transports[0]->BeginCall(kTestCall);
  sink.transports[0]->Receive({}, {got.data(), got.size()}, ReduceOp::kSum, got.data(), {0, 1});
  EXPECT_EQ(sink.transports[0]->Wait({}, absl::Seconds(30)), absl::OkStatus());
  received = true;
  source.transports[0].reset();
  relay.join();
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(got[i], 1 + sent[i]);
}

}  // namespace
}  // namespace psring
