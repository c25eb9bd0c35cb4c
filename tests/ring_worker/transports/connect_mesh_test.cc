// Connecting the ranks of a mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/deadline.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "tests/common/net/flood.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/ring_worker/mesh.h"
#include "tests/write_all.h"

namespace psring {
namespace {

using testing::AllOf;

const MeshOptions kTcp = {.transport = "tcp", .first_peers = EveryPeer};

// What a rank publishes that listens on this port.
std::string Card(int port) {
  return absl::StrCat(port, " 127.0.0.1 ", std::string(32, 'a'), " ", std::string(32, 'b'), " tcp host ");
}
constexpr char kLayout[] = "1 1 0 1";

// What a rank does before it connects.
TcpListener PublishAnAddress(Rendezvous& rendezvous) {
  TcpListener listener = *ListenTcp("127.0.0.1");
  EXPECT_TRUE(rendezvous.Exchange("mesh", Card(listener.port)).ok());
  EXPECT_TRUE(rendezvous.Exchange("layout", kLayout).ok());
  return listener;
}

TEST(ConnectMeshTest, RanksConnectDespiteOtherConnectionsToThePort) {
  const auto store = std::make_shared<FakeStore>();
  FakeRendezvous of_zero(store, 0, 2), rendezvous(store, 1, 2);
  std::unique_ptr<Transport> zero, one;
  std::thread rank_zero([&] {
    auto transport = MakeMeshTransport(of_zero, kTcp);
    ASSERT_TRUE(transport.ok()) << transport.status();
    zero = *std::move(transport);
  });
  const std::vector<std::string> card = absl::StrSplit(*rendezvous.Get("mesh/0/0", "rank 0"), ' ');
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(card[0], &port));
  const MonotonicTime soon = MonotonicNow() + absl::Seconds(10);
  std::vector<FileDescriptor> others;
  for (const std::string& bytes :
       {std::string(), std::string("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything at all\r\n\r\n"),
        std::string("psring\2\3"), std::string(1000, '\0'),
        // A message of rank 1 with a wrong proof.
        absl::StrCat(std::string("psring\2\3"), std::string("\0\0\0\0\1\0\0\0", 8), std::string(48, '0'))}) {
    others.push_back(*ConnectTcp("127.0.0.1", port, soon));
    ASSERT_TRUE(WriteAll(others.back().get(), bytes.data(), bytes.size(), soon).ok());
  }
  const Flood flood("127.0.0.1", port);
  ASSERT_TRUE(Eventually([&] { return flood.opened() >= Flood::kOpen; }));
  const MonotonicTime begin = MonotonicNow();
  auto transport = MakeMeshTransport(rendezvous, kTcp);
  rank_zero.join();
  ASSERT_TRUE(transport.ok()) << transport.status();
  one = *std::move(transport);

  std::vector<float> sent = {1, 2, 3, 4}, got(4);
  const CallInfo call = {.elements = 4, .operation = "test"};
  zero->BeginCall(call);
  one->BeginCall(call);
  one->Send(0, {}, {sent.data(), 4});
  zero->Receive({}, {got.data(), 4}, ReduceOp::kSum, nullptr, {1});
  EXPECT_EQ(zero->Wait({}, absl::Seconds(10)), absl::OkStatus());
  EXPECT_EQ(got, sent);
  EXPECT_LT(MonotonicNow() - begin, Flood::kMaxDelay) << "after " << flood.opened() << " silent connections";
}

// A rank with many connections from strangers closes some, which may be another rank's.
TEST(ConnectMeshTest, TriesAgainIfALowerRankClosesAConnection) {
  const auto store = std::make_shared<FakeStore>();
  const MonotonicTime soon = MonotonicNow() + absl::Seconds(20);
  std::vector<PendingConnections::Member> members;
  std::thread rank_zero([&] {
    FakeRendezvous rendezvous(store, 0, 2);
    const TcpListener listener = PublishAnAddress(rendezvous);
    const int fd = listener.socket.get();
    for (int closed = 0; closed < 2; ++closed) {
      ASSERT_TRUE(AwaitSocket(fd, POLLIN, soon, "rank 1").ok());
      EXPECT_TRUE(FileDescriptor(accept4(fd, nullptr, nullptr, SOCK_CLOEXEC)).valid());
    }
    PendingConnections pending({TestSecret(), Purpose::kMesh, std::string(32, 'a')});
    while (members.size() < 2 && MonotonicNow() < soon) {  // for data, and for control
      auto more = pending.Wait({fd}, soon);
      ASSERT_TRUE(more.ok()) << more.status();
      for (PendingConnections::Member& member : *more) members.push_back(std::move(member));
    }
    for (PendingConnections::Member& member : members) {
      const bool is_control = static_cast<uint32_t>(member.detail) == 0;
      EXPECT_TRUE(!is_control || SendAll(member.socket, "+", 1, soon).ok());
    }
  });
  FakeRendezvous rendezvous(store, 1, 2);
  const absl::Status status = MakeMeshTransport(rendezvous, kTcp).status();
  rank_zero.join();
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(members.size(), 2u);
}

TEST(ConnectMeshTest, ALongOrUnprintableAddressIsAnErrorOfOneLine) {
  for (const std::string& card : {std::string("\x1b[2J\n"), std::string(1 << 20, 'x')}) {
    const auto store = std::make_shared<FakeStore>();
    std::thread rank_zero([&] {
      FakeRendezvous rendezvous(store, 0, 2);
      EXPECT_TRUE(rendezvous.Exchange("mesh", card).ok());
    });
    FakeRendezvous rendezvous(store, 1, 2);
    const absl::Status status = MakeMeshTransport(rendezvous, kTcp).status();
    rank_zero.join();
    EXPECT_THAT(Text(status), Has("rank 0 published an invalid address"));
    EXPECT_THAT(Text(status), Lacks("\x1b", "\n"));
    EXPECT_LT(status.message().size(), 2000u);
  }
}

TEST(ConnectMeshTest, ARankThatDoesNotConnectIsNamed) {
  std::latch others_end(2);
  const auto store = std::make_shared<FakeStore>();
  OnRanks(3, [&](int rank) {
    FakeRendezvous rendezvous(store, rank, 3, absl::Seconds(rank == 2 ? 20 : 1));
    if (rank == 2) {
      const TcpListener listener = PublishAnAddress(rendezvous);
      return others_end.wait();
    }
    const absl::Cleanup ended = [&] { others_end.count_down(); };
    const absl::Status status = MakeMeshTransport(rendezvous, kTcp).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(status), AllOf(Has("connection from rank 2"), Lacks("from rank 1")));
  });
}

// Between the exchange of addresses and its connections.
TEST(ConnectMeshTest, ARankThatEndsBeforeItConnectsIsNamedAtOnce) {
  OnRanksOfAStore(4, [](Rendezvous& rendezvous, int rank) {
    if (rank == 1) {
      (void)PublishAnAddress(rendezvous);
      return;
    }
    EXPECT_THAT(MakeMeshTransport(rendezvous, kTcp).status(),
                Fails(absl::StatusCode::kUnavailable, "rank 1 (", "waited for it to connect"));
  });
}

TEST(ConnectMeshTest, AnUnreachableAddressIsRejected) {
  FakeRendezvous rendezvous(std::make_shared<FakeStore>(), 0, 1);
  for (const char* host : {"0.0.0.0", "::", "", "no.such.host.invalid"})
    EXPECT_EQ(MakeMeshTransport(rendezvous, {.bind_host = host}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << host;
  // TEST-NET-1: an address that no machine has.
  EXPECT_THAT(Text(MakeMeshTransport(rendezvous, {.bind_host = "192.0.2.1"}).status()),
              Has("cannot listen on 192.0.2.1"));
}

}  // namespace
}  // namespace psring
