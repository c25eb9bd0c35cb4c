#include "common/net/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <future>
#include <string>

#include "common/base/deadline.h"
#include "gtest/gtest.h"
#include "tests/eventually.h"
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

}  // namespace
}  // namespace psring
