#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "common/net/clock_offset.h"
#include "common/net/descriptor_limit.h"
#include "common/net/tcp_socket.h"
#include "common/net/unix_socket.h"
#include "gtest/gtest.h"
#include "tests/eventually.h"
#include "tests/random_moments.h"
#include "tests/write_all.h"

namespace psring {
namespace {

std::string CongestionControl(int fd) {
  char name[16] = {};
  socklen_t length = sizeof name;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

TEST(TcpSocketTest, ConnectionsWithinAHostUseReno) {
  const auto listener = ListenTcp("127.0.0.1").value();
  const auto connected = ConnectTcp("127.0.0.1", listener.port, MonotonicNow() + absl::Seconds(5)).value();
  EXPECT_EQ(CongestionControl(connected.get()), "reno");
}

TEST(TcpSocketTest, OtherConnectionsKeepTheSystemsCongestionControl) {
  const auto listener = ListenTcp("127.0.0.2").value();
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string before = CongestionControl(socket.get());
  sockaddr_in from = {};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK);  // 127.0.0.1: any other address than its peer's
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
  sockaddr_in to = from;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  to.sin_port = htons(static_cast<uint16_t>(listener.port));
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  ASSERT_TRUE(PrepareTcpSocket(socket.get()).ok());
  EXPECT_EQ(CongestionControl(socket.get()), before);
}

TEST(TcpSocketTest, ARefusedConnectionNamesTheAddress) {
  const auto listener = ListenTcp("127.0.0.1");
  const int port = listener->port;
  shutdown(listener->socket.get(), SHUT_RDWR);
  const auto connected = ConnectTcp("127.0.0.1", port, MonotonicNow() + absl::Seconds(5));
  ASSERT_FALSE(connected.ok());
  EXPECT_NE(std::string(connected.status().message()).find(std::to_string(port)), std::string::npos);
}

TEST(TcpSocketTest, AMessageMayArriveInPieces) {
  const MonotonicTime soon = MonotonicNow() + absl::Seconds(60);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor from(ends[0]);
  MemberSocket to{FileDescriptor(ends[1])};
  std::string text(4, 0);
  auto received = std::async(std::launch::async,
                             [&] { return ReceiveAll(to, text.data(), text.size(), soon, "rank 1"); });
  for (const std::string piece : {"t", "ex", "t"}) {
    EXPECT_EQ(WriteAll(from.get(), piece.data(), piece.size(), soon), absl::OkStatus());
    char next = 0;
    EXPECT_TRUE(Eventually([&] { return recv(ends[1], &next, 1, MSG_PEEK | MSG_DONTWAIT) < 0; })) << piece;
  }
  EXPECT_EQ(received.get(), absl::OkStatus());
  EXPECT_EQ(text, "text");
  EXPECT_EQ(shutdown(from.get(), SHUT_WR), 0);
  EXPECT_EQ(ReceiveAll(to, text.data(), 1, soon, "rank 1"),
            absl::UnavailableError("rank 1: the connection ended"));
}

TEST(UnixSocketTest, AFullQueueOfConnectionsIsWaitedForUntilTheDeadline) {
  const std::string name = absl::StrCat("psring-unix-socket-test-", getpid());
  const UnixSocket listener = *UnixSocket::Listen(name);
  ASSERT_EQ(listen(listener.fd(), 0), 0);  // a queue of one
  const auto first = UnixSocket::Connect(name, MonotonicNow() + absl::Seconds(30));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto late = UnixSocket::Connect(name, MonotonicNow() + absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();

  absl::StatusOr<UnixSocket> second = absl::UnknownError("not yet");
  std::thread waiting([&] { second = UnixSocket::Connect(name, MonotonicNow() + absl::Seconds(30)); });
  const FileDescriptor accepted(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  waiting.join();
  EXPECT_TRUE(accepted.valid());
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(UnixSocketTest, ANameWithoutAListenerIsAnErrorAtOnce) {
  const auto found = UnixSocket::Connect(absl::StrCat("psring-unix-socket-test-none-", getpid()),
                                         MonotonicNow() + absl::Minutes(10));
  EXPECT_TRUE(absl::IsUnavailable(found.status())) << found.status();
}

TEST(Descriptors, GrowWithPeersServersAndMembersOfTheStore) {
  const auto all = [](int ranks) { return TrainerDescriptors({.world_size = ranks, .peers = ranks - 1}); };
  EXPECT_EQ(all(9) - all(8), all(8) - all(7));
  EXPECT_GT(all(9), all(8));
  EXPECT_LT(TrainerDescriptors({.world_size = 1024, .peers = 2}), 64) << "a ring";
  const int64_t alone = TrainerDescriptors({});
  EXPECT_EQ(TrainerDescriptors({.world_size = 8}), alone) << "no connections to other ranks";
  EXPECT_GT(TrainerDescriptors({.world_size = 8, .servers = 2}), alone);
  EXPECT_GT(TrainerDescriptors({.world_size = 8, .hosts_store = true}), alone);
  EXPECT_GT(TrainerDescriptors({.ranks = 4, .world_size = 8, .peers = 7}), all(8));
  EXPECT_GT(ServerDescriptors(9), ServerDescriptors(8));
  EXPECT_GT(TrainerDescriptors({.world_size = 8, .peers = 7, .tls = true}), all(8)) << "the store's";
  EXPECT_LT(TrainerDescriptors({.world_size = 8, .peers = 7, .tls = true}), all(9)) << "not the ranks'";
  EXPECT_GT(ServerDescriptors(8, /*tls=*/true), ServerDescriptors(8));
  // Measured: 33 of each of 6 ranks with shared memory, 27 of a server of 6 workers, 58 of a launcher of 8
  // ranks.
  EXPECT_GE(all(6), 33);
  EXPECT_GE(ServerDescriptors(6), 27);
  EXPECT_GE(LauncherDescriptors(8), 58);
  EXPECT_LT(ServerDescriptors(1000), 5000);
}

// In a process with these limits: prints the message, and exits with the soft limit afterwards.
[[noreturn]] void AllowWithin(rlim_t soft, rlim_t hard, int64_t needed) {
  rlimit limits{soft, hard};
  if (setrlimit(RLIMIT_NOFILE, &limits) != 0) _exit(255);
  std::fputs(std::string(AllowDescriptors(needed, RanksText(8)).message()).c_str(), stderr);
  if (getrlimit(RLIMIT_NOFILE, &limits) != 0) _exit(255);
  _exit(static_cast<int>(limits.rlim_cur));
}

TEST(DescriptorsDeathTest, TheLimitIsRaisedAsFarAsAllowed) {
  EXPECT_EXIT(AllowWithin(32, 100, 80), testing::ExitedWithCode(100), "^$");
  EXPECT_EXIT(AllowWithin(32, 80, 80), testing::ExitedWithCode(80), "^$");
}

TEST(DescriptorsDeathTest, ALimitThatIsTooLowIsReportedWithTheCommandThatRaisesIt) {
  EXPECT_EXIT(AllowWithin(32, 32, 80), testing::ExitedWithCode(32),
              "^this process may open 32 files, and 8 ranks need about 80; run: ulimit -n 80$");
}

TEST(OffsetOf, TakesTheFastestReply) {
  const ClockOffset offset = OffsetOf({{.asked = 0, .theirs = 9000, .answered = 4000},
                                       {.asked = 5000, .theirs = 12'050, .answered = 5100},
                                       {.asked = 6000, .theirs = 13'900, .answered = 7000}});
  EXPECT_EQ(offset.at, 5050);
  EXPECT_EQ(offset.ahead, 7000);
  EXPECT_EQ(offset.within, 50);
}

TEST(OffsetOf, ErrorIsWithinItsBound) {
  std::mt19937_64 random(TestSeed());
  const auto up_to = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  for (int i = 0; i < 1000; ++i) {
    const int64_t truth = up_to(1'000'000'000) - 500'000'000;
    std::vector<ClockReading> readings;
    for (int64_t now = 0; readings.size() < 8; now += 1'000'000) {
      const int64_t there = up_to(300'000), back = up_to(300'000);  // ways of different length
      readings.push_back({.asked = now, .theirs = now + there + truth, .answered = now + there + back});
    }
    const ClockOffset offset = OffsetOf(readings);
    EXPECT_LE(std::abs(offset.ahead - truth), offset.within);
  }
}

TEST(ClockMap, FollowsAClockThatRunsFaster) {
  const ClockMap map({.at = 1000, .ahead = 500, .within = 3}, {.at = 1'001'000, .ahead = 550, .within = 2});
  EXPECT_EQ(map.Theirs(1000), 1500);
  EXPECT_EQ(map.Theirs(501'000), 501'525);
  EXPECT_EQ(map.Theirs(1'001'000), 1'001'550);
  EXPECT_EQ(map.within(), 3);
  EXPECT_FALSE(map.same());
}

TEST(ClockMap, OfOneClockIsTheIdentity) {
  EXPECT_TRUE(ClockMap().same());
  EXPECT_EQ(ClockMap().Theirs(123), 123);
  EXPECT_EQ(ClockMap({.at = 5, .ahead = 7}, {.at = 5, .ahead = 7}).Theirs(100), 107);
}

}  // namespace
}  // namespace psring
