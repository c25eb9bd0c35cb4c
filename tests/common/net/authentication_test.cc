// Members authenticate each other; clients and servers without the secret are rejected and delay nobody.
#include "common/net/authentication.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/unix_socket.h"
#include "tests/common/net/flood.h"
#include "tests/eventually.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);
const Credentials kMember = {.secret = TestSecret(), .purpose = Purpose::kMesh};
const Credentials kStranger = {.secret = OtherSecret(), .purpose = Purpose::kMesh};

// Two ends of a connection, neither of which blocks.
std::pair<FileDescriptor, FileDescriptor> Pair(int type = SOCK_STREAM) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// Runs the server's side until it has decided.
ServerHandshake::State Serve(ServerHandshake& server, const Credentials& credentials) {
  ServerHandshake::State state = ServerHandshake::State::kPending;
  SeenNonces seen;
  EXPECT_TRUE(Eventually([&] {
    state = server.Advance(credentials, seen);
    return state != ServerHandshake::State::kPending;
  }));
  return state;
}

struct Outcome {
  absl::Status client;
  ServerHandshake::State server = ServerHandshake::State::kPending;
  uint64_t detail = 0;
};

Outcome Authenticate(const Credentials& clients, const Credentials& servers, int type = SOCK_STREAM) {
  auto [client_end, server_end] = Pair(type);
  auto client = std::async(std::launch::async, [&, socket = std::move(client_end)]() mutable {
    const FileDescriptor own = std::move(socket);  // closed at the end
    return AuthenticateTo(own.get(), clients, "the server", MonotonicNow() + kLong, /*detail=*/77);
  });
  Outcome outcome;
  {
    ServerHandshake server(std::move(server_end));
    outcome.server = Serve(server, servers);
    outcome.detail = server.detail();
  }  // a rejected connection is closed
  outcome.client = client.get();
  return outcome;
}

TEST(Authentication, MembersAuthenticateEachOther) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const Outcome outcome = Authenticate(kMember, kMember, type);
    EXPECT_TRUE(outcome.client.ok()) << outcome.client;
    EXPECT_EQ(outcome.server, ServerHandshake::State::kAuthenticated);
    EXPECT_EQ(outcome.detail, 77u);
  }
}

TEST(Authentication, ADifferentSecretIsRejectedOnBothSides) {
  for (const auto& [client, server] : {std::pair(kStranger, kMember), std::pair(kMember, kStranger)}) {
    const Outcome outcome = Authenticate(client, server);
    EXPECT_EQ(outcome.client, absl::PermissionDeniedError(
                                  "the server does not have this job's secret; give all processes the "
                                  "same PSRING_SECRET_FILE"));
    EXPECT_EQ(outcome.server, ServerHandshake::State::kRejected);
  }
}

TEST(Authentication, AConnectionForAnotherServiceIsRejected) {
  const Outcome outcome = Authenticate(kMember, {TestSecret(), Purpose::kRendezvous});
  EXPECT_EQ(outcome.client,
            absl::FailedPreconditionError(
                "the server is another version or another service of psring; check the address"));
  EXPECT_EQ(outcome.server, ServerHandshake::State::kRejected);
}

TEST(Authentication, AConnectionForAnotherListenerIsRejected) {
  const auto at = [](const std::string& token) { return Credentials{TestSecret(), Purpose::kMesh, token}; };
  const std::string token = NewListenerToken();
  EXPECT_NE(token, NewListenerToken());
  EXPECT_TRUE(Authenticate(at(token), at(token)).client.ok());
  for (const auto& [client, server] : {std::pair(at(token), at(NewListenerToken())),
                                       std::pair(at(token), kMember), std::pair(kMember, at(token))}) {
    const Outcome outcome = Authenticate(client, server);
    EXPECT_TRUE(absl::IsPermissionDenied(outcome.client)) << outcome.client;
    EXPECT_EQ(outcome.server, ServerHandshake::State::kRejected);
  }
}

TEST(Authentication, WithoutASecretNothingIsAuthenticated) {
  const Credentials none = {.secret = {}, .purpose = Purpose::kMesh};
  const auto [client, server] = Pair();
  EXPECT_TRUE(absl::IsFailedPrecondition(AuthenticateTo(client.get(), none, "it", MonotonicNow() + kLong)));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      AuthenticatedListener::Start(*ListenTcp("127.0.0.1"), none, [](PendingConnections::Member) {
      }).status()));
}

class RawMessages : public testing::Test {
 protected:
  static void Send(const FileDescriptor& to, const std::string& bytes) {
    ASSERT_EQ(send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static std::string Read(const FileDescriptor& from, size_t bytes) {
    std::string text(bytes, 0);
    EXPECT_TRUE(AwaitSocket(from.get(), POLLIN, MonotonicNow() + kLong, "a message").ok());
    EXPECT_EQ(recv(from.get(), text.data(), bytes, 0), static_cast<ssize_t>(bytes));
    return text;
  }
  // A member's first message with a nonce of `fill`.
  static std::string Hello(char fill = 'n') {
    const std::string hello =
        absl::StrCat(std::string("psring\2\3", 8), std::string(8, '\0'), std::string(16, fill));
    const JobSecret::Digest proof = TestSecret().Sign(absl::StrCat("psring hello ", hello));
    return absl::StrCat(hello, std::string(proof.begin(), proof.end()));
  }
  ServerHandshake::State Advance(ServerHandshake& server) { return server.Advance(kMember, seen_); }
  // What the server answers to a valid first message.
  static std::string ReadAnswer(const FileDescriptor& from) {
    const std::string begin = Read(from, 8);
    return begin + Read(from, 48);
  }

  SeenNonces seen_;
};

TEST_F(RawMessages, TheServersOwnProofIsNotAClientsProof) {
  auto [client, server_end] = Pair();
  ServerHandshake server(std::move(server_end));
  Send(client, Hello());
  EXPECT_EQ(Advance(server), ServerHandshake::State::kPending);
  Send(client, ReadAnswer(client).substr(24));
  EXPECT_EQ(Serve(server, kMember), ServerHandshake::State::kRejected);
}

TEST_F(RawMessages, AProofIsValidForOneConnection) {
  // A stranger relays a member's messages to the server, and repeats them on a second connection.
  std::string proof, hello;
  {
    auto [member, stranger] = Pair();
    auto [relayed, server_end] = Pair();
    auto client = std::async(std::launch::async, [&, socket = std::move(member)] {
      return AuthenticateTo(socket.get(), kMember, "the server", MonotonicNow() + kLong);
    });
    ServerHandshake server(std::move(server_end));
    Send(relayed, hello = Read(stranger, 64));
    EXPECT_EQ(Advance(server), ServerHandshake::State::kPending);
    Send(stranger, ReadAnswer(relayed));
    proof = Read(stranger, 32);
    EXPECT_TRUE(client.get().ok());
  }
  for (const bool is_known : {true, false}) {  // the same listener, and one that has not seen the message
    if (!is_known) seen_ = {};
    auto [stranger, server_end] = Pair();
    ServerHandshake server(std::move(server_end));
    Send(stranger, hello);
    EXPECT_EQ(Advance(server),
              is_known ? ServerHandshake::State::kRejected : ServerHandshake::State::kPending);
    Send(stranger, proof);
    EXPECT_EQ(Serve(server, kMember), ServerHandshake::State::kRejected);
  }
}

TEST_F(RawMessages, AFirstMessageWithoutAValidProofIsRejectedAtOnce) {
  for (size_t at = 8; at < Hello().size(); ++at) {
    auto [client, server_end] = Pair();
    ServerHandshake server(std::move(server_end));
    std::string hello = Hello();
    hello[at] = static_cast<char>(hello[at] ^ 1);
    Send(client, hello);
    EXPECT_EQ(Advance(server), ServerHandshake::State::kRejected) << at;
    EXPECT_FALSE(server.is_proven());
    EXPECT_EQ(Read(client, 8), std::string("psring\2\0", 8)) << "the client learns why";
  }
}

TEST(SeenNoncesTest, RemembersThousandsInBoundedMemory) {
  SeenNonces seen;
  const auto nonce = [](uint32_t number) {
    Nonce bytes = {};
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
  };
  constexpr uint32_t kMany = 100'000;
  for (uint32_t i = 0; i < kMany; ++i) EXPECT_TRUE(seen.Insert(nonce(i)));
  for (uint32_t i = kMany - 32768; i < kMany; ++i) EXPECT_FALSE(seen.Insert(nonce(i)));
  EXPECT_TRUE(seen.Insert(nonce(0)));
}

TEST_F(RawMessages, TheClientRejectsItsOwnMessagesAndOtherProtocols) {
  const std::pair<std::string, absl::StatusCode> answers[] = {
      {Hello() + std::string(24, 'x'), absl::StatusCode::kPermissionDenied},
      {std::string("psring\2\0", 8), absl::StatusCode::kPermissionDenied},
      {std::string("psring\2\4", 8), absl::StatusCode::kFailedPrecondition},
      {std::string("psring\3\3", 8) + std::string(48, 'x'), absl::StatusCode::kFailedPrecondition},
      {"SSH-2.0-OpenSSH_9.2p1\r\n", absl::StatusCode::kFailedPrecondition},
  };
  for (const auto& [answer, code] : answers) {
    auto [client, server] = Pair();
    Send(server, answer);
    const absl::Status status = AuthenticateTo(client.get(), kMember, "it", MonotonicNow() + kLong);
    EXPECT_EQ(status.code(), code) << status;
  }
}

TEST_F(RawMessages, TheClientWaitsUntilItsDeadline) {
  auto [client, server] = Pair();
  Send(server, "psring\2\3");  // and nothing more
  const absl::Status status = AuthenticateTo(client.get(), kMember, "it", MonotonicNow() + absl::Seconds(1));
  EXPECT_EQ(status, absl::DeadlineExceededError("it: no answer in time"));
}

TEST_F(RawMessages, TheServerRejectsGarbageAndTruncatedMessages) {
  const std::string texts[] = {"x",
                               std::string(64, '\0'),
                               "GET / HTTP/1.1\r\nHost: localhost\r\n",
                               std::string("psring\1\3") + std::string(24, 'x'),  // an earlier version
                               Hello().substr(0, 63),
                               Hello() + std::string(31, 'x'),
                               Hello() + std::string(32, 'x')};
  for (const std::string& text : texts) {
    auto [client, server_end] = Pair();
    ServerHandshake server(std::move(server_end));
    for (const char byte : text) {
      if (send(client.get(), &byte, 1, MSG_NOSIGNAL) != 1) break;
      (void)Advance(server);
    }
    client = FileDescriptor();
    EXPECT_EQ(Advance(server), ServerHandshake::State::kRejected) << text;
    seen_ = {};
  }
}

TEST_F(RawMessages, AConnectionThatEndsDuringItsHandshakeDoesNotCountAsWithoutTheSecret) {
  using Reason = ServerHandshake::Reason;
  const std::pair<std::string, Reason> texts[] = {{Hello().substr(0, 63), Reason::kIncomplete},
                                                  {Hello(), Reason::kIncomplete},
                                                  {Hello() + std::string(31, 'x'), Reason::kIncomplete},
                                                  {Hello() + std::string(32, 'x'), Reason::kSecret},
                                                  {std::string(64, 'x'), Reason::kSecret}};
  for (const auto& [text, reason] : texts) {
    auto [client, server_end] = Pair();
    ServerHandshake server(std::move(server_end));
    Send(client, text);
    seen_ = {};
    (void)Advance(server);
    client = FileDescriptor();
    EXPECT_EQ(Serve(server, kMember), ServerHandshake::State::kRejected) << text;
    EXPECT_EQ(server.reason(), reason) << text;
  }
}

// Counts members.
class ListenerTest : public testing::Test {
 protected:
  FileDescriptor Connect() {
    auto socket = ConnectTcp("127.0.0.1", listener_->port(), MonotonicNow() + kLong);
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : FileDescriptor();
  }
  absl::Status Join(const Credentials& credentials, uint64_t detail = 0) {
    FileDescriptor socket = Connect();
    PSRING_RETURN_IF_ERROR(
        AuthenticateTo(socket.get(), credentials, "the listener", MonotonicNow() + kLong, detail));
    members_.push_back(std::move(socket));
    return absl::OkStatus();
  }
  std::vector<uint64_t> details() {
    MutexLock lock(mutex_);
    return details_;
  }
  // The first of 5 rejected connections has a line of its own, the others share one.
  void ExpectLineOfRest(const std::function<void()>& be_rejected, const std::string& reason) {
    testing::internal::CaptureStderr();
    for (int i = 0; i < 5; ++i) be_rejected();
    (void)Connect();  // a health check: it closes without having sent anything
    EXPECT_TRUE(Join(kMember).ok());
    EXPECT_TRUE(Eventually([&] { return !details().empty(); }));
    listener_.reset();
    const std::string last = absl::StrCat(" ", reason, ", last from 127\\.0\\.0\\.1:[0-9]+\n");
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::ContainsRegex(absl::StrCat("^psring: rejected 1 connection", last,
                                                    "psring: rejected 4 connections", last, "$")));
  }

  Mutex mutex_;
  std::vector<uint64_t> details_ ABSL_GUARDED_BY(mutex_);
  std::vector<FileDescriptor> members_;
  std::unique_ptr<AuthenticatedListener> listener_ = *AuthenticatedListener::Start(
      *ListenTcp("127.0.0.1"), kMember, [this](PendingConnections::Member member) {
        MutexLock lock(mutex_);
        details_.push_back(member.detail);
      });
};

TEST_F(ListenerTest, PassesOnMembersOnly) {
  EXPECT_TRUE(Join(kMember, 1).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Join(kStranger, 2)));
  EXPECT_TRUE(Join(kMember, 3).ok());
  EXPECT_TRUE(Eventually([&] { return details() == std::vector<uint64_t>{1, 3}; }));
}

TEST_F(ListenerTest, AFloodOfSilentClientsDelaysNoMember) {
  Flood flood("127.0.0.1", listener_->port());
  ASSERT_TRUE(Eventually([&] { return flood.opened() >= Flood::kOpen; }));
  for (uint64_t detail = 1; detail <= 20; ++detail) {
    const MonotonicTime begin = MonotonicNow();
    EXPECT_TRUE(Join(kMember, detail).ok());
    EXPECT_TRUE(Eventually([&] { return details().size() == detail; }));
    EXPECT_LT(MonotonicNow() - begin, Flood::kMaxDelay) << "after " << flood.opened() << " connections";
  }
}

// Strangers can open connections faster than a member answers.
TEST_F(RawMessages, OfManyPendingConnectionsTheOldestSilentOneIsClosedAtOnce) {
  const TcpListener listener = *ListenTcp("127.0.0.1");
  const int flags = fcntl(listener.socket.get(), F_GETFL);
  ASSERT_EQ(fcntl(listener.socket.get(), F_SETFL, flags | O_NONBLOCK), 0);
  const auto connect = [&](const std::string& from) {
    return *ConnectTcp("127.0.0.1", listener.port, MonotonicNow() + kLong, from);
  };
  PendingConnections pending(kMember);
  const auto accept = [&] { EXPECT_TRUE(pending.Wait({listener.socket.get()}, MonotonicNow()).ok()); };
  const auto is_open = [](const FileDescriptor& socket) {
    char byte = 0;
    return recv(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
  };
  const FileDescriptor member = connect("127.0.0.1");
  Send(member, Hello());
  ASSERT_TRUE(Eventually([&] {
    accept();
    return !is_open(member);
  }));
  ReadAnswer(member);
  const FileDescriptor elsewhere = connect("127.0.0.2");  // silent, but the only one of its address
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 600; ++i) {
    silent.push_back(connect("127.0.0.1"));
    accept();
  }
  ASSERT_TRUE(Eventually([&] {
    accept();
    return !is_open(silent[silent.size() - 255]);
  }));
  EXPECT_EQ(pending.size(), 256u);
  for (size_t i = 0; i < silent.size(); ++i) EXPECT_EQ(is_open(silent[i]), i >= silent.size() - 254) << i;
  EXPECT_TRUE(is_open(elsewhere));
  EXPECT_TRUE(is_open(member));
}

TEST(PendingConnectionsTest, WaitEndsWhenAListenerIsShutDown) {
  const TcpListener tcp = *ListenTcp("127.0.0.1");
  const UnixSocket local = *UnixSocket::Listen(absl::StrCat("psring-authentication-test-", getpid()));
  for (const int listener : {tcp.socket.get(), local.fd()}) {
    PendingConnections pending(kMember);
    EXPECT_TRUE(pending.Wait({-1, listener}, MonotonicNow() + absl::Milliseconds(10))->empty());
    ASSERT_EQ(shutdown(listener, SHUT_RDWR), 0);
    EXPECT_TRUE(absl::IsCancelled(pending.Wait({-1, listener}, MonotonicNow() + kLong).status()));
  }
}

TEST_F(ListenerTest, ReportsConnectionsThatEndDuringTheirHandshakeInOneLine) {
  ExpectLineOfRest([this] { EXPECT_EQ(send(Connect().get(), "psring", 6, MSG_NOSIGNAL), 6); },
                   "that did not complete the handshake");
}

TEST_F(ListenerTest, ReportsRejectedConnectionsInOneLine) {
  ExpectLineOfRest([this] { EXPECT_FALSE(Join(kStranger).ok()); }, "without the job's secret");
}

}  // namespace
}  // namespace psring
