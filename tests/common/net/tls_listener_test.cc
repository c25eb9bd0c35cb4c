// A listener with TLS accepts only members of the job, and the network does not see their text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/authentication.h"
#include "tests/common/net/flood.h"
#include "tests/common/net/relay.h"
#include "tests/common/net/tls_testing.h"
#include "tests/eventually.h"

namespace psring {
namespace {

using testing::ContainsRegex;

// A listener of members, and what each of them has sent.
class TlsListener : public testing::Test {
 protected:
  void Listen(const JobSecret& secret) {
    listener_ = *AuthenticatedListener::Start(
        *ListenTcp("127.0.0.1"), {.secret = secret, .purpose = Purpose::kMesh},
        [this](PendingConnections::Member member) {
          MutexLock lock(mutex_);
          members_.push_back(std::move(member));
        },
        [this](uint64_t detail, const std::string& peer) {
          MutexLock lock(mutex_);
          EXPECT_TRUE(absl::StartsWith(peer, "127.0.0.1:")) << peer;
          reports_.push_back(detail);
        });
  }
  absl::Status Report(const JobSecret& secret, uint64_t detail) {
    PSRING_ASSIGN_OR_RETURN(const FileDescriptor socket, ConnectTcp("127.0.0.1", listener_->port(), Soon()));
    return ReportOtherTls(socket.get(), {.secret = secret, .purpose = Purpose::kMesh}, "the listener", Soon(),
                          detail);
  }
  std::vector<uint64_t> reports() {
    MutexLock lock(mutex_);
    return reports_;
  }
  absl::StatusOr<MemberSocket> Join(const JobSecret& secret, int port = 0) {
    PSRING_ASSIGN_OR_RETURN(FileDescriptor socket,
                            ConnectTcp("127.0.0.1", port > 0 ? port : listener_->port(), Soon()));
    return AuthenticateTcp(std::move(socket), {.secret = secret, .purpose = Purpose::kMesh}, "the listener",
                           Soon(), /*detail=*/77);
  }
  size_t members() {
    MutexLock lock(mutex_);
    return members_.size();
  }
  // The first member's.
  MemberSocket Taken() {
    EXPECT_TRUE(Eventually([&] { return members() > 0; }));
    MutexLock lock(mutex_);
    EXPECT_EQ(members_.front().detail, 77u);
    EXPECT_TRUE(members_.front().within_host);
    MemberSocket socket = std::move(members_.front().socket);
    members_.clear();
    return socket;
  }
  std::string LogOfListener() {
    listener_.reset();
    return testing::internal::GetCapturedStderr();
  }

  Mutex mutex_;
  std::vector<PendingConnections::Member> members_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> reports_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<AuthenticatedListener> listener_;
};

TEST_F(TlsListener, MembersAuthenticateInsideTls) {
  const JobSecret secret = TestSecret().WithTls(Auto());
  Listen(secret);
  auto member = Join(secret).value();
  MemberSocket taken = Taken();
  Write(member, "text");
  EXPECT_EQ(Read(taken, 4), "text");
  Write(taken, "reply");
  EXPECT_EQ(Read(member, 5), "reply");
}

TEST_F(TlsListener, ARightCertificateDoesNotReplaceTheSecret) {
  // As with certificates of a site, which serve several jobs.
  const Context tls = Auto();
  Listen(TestSecret().WithTls(tls));
  const size_t threads = Threads(), descriptors = Descriptors();
  const auto is_idle = [&] { return Threads() == threads && Descriptors() == descriptors; };
  for (int i = 0; i < 3; ++i) {
    (void)Join(TestSecret().WithTls(tls));
    (void)Taken();
  }
  EXPECT_TRUE(Eventually(is_idle));
  for (int i = 0; i < 5; ++i) {
    const absl::Status status = Join(OtherSecret().WithTls(tls)).status();
    EXPECT_EQ(status, absl::PermissionDeniedError(
                          "the listener does not have this job's secret; give all processes the same "
                          "PSRING_SECRET_FILE"));
  }
  EXPECT_EQ(members(), 0u);
  EXPECT_TRUE(Eventually(is_idle));
}

TEST_F(TlsListener, AClientThatDiffersInTlsIsRejectedWithOneLineOnBothSides) {
  const std::string remedy = "; give --tls to all processes of the job, or omit it for all";
  const JobSecret plain = TestSecret(), encrypted = TestSecret().WithTls(Auto());
  for (const bool listener_encrypts : {true, false}) {
    testing::internal::CaptureStderr();
    Listen(listener_encrypts ? encrypted : plain);
    EXPECT_EQ(Join(listener_encrypts ? plain : encrypted).status(),
              absl::FailedPreconditionError(absl::StrCat("the listener ",
                                                         listener_encrypts
                                                             ? "uses --tls, and this process does not"
                                                             : "does not use --tls, and this process does",
                                                         remedy)));
    EXPECT_THAT(LogOfListener(),
                ContainsRegex(absl::StrCat("^psring: rejected 1 connection ",
                                           listener_encrypts ? "without --tls, which this process uses"
                                                             : "with --tls, which this process does not use",
                                           ", last from 127\\.0\\.0\\.1:[0-9]+", remedy, "\n$")));
  }
}

TEST_F(TlsListener, AMemberReportsThatItHasAnotherTls) {
  const JobSecret plain = TestSecret(), encrypted = TestSecret().WithTls(Auto());
  for (const bool listener_encrypts : {true, false}) {
    Listen(listener_encrypts ? encrypted : plain);
    const JobSecret& own = listener_encrypts ? plain : encrypted;
    const absl::Status rejected = Join(own).status();
    EXPECT_TRUE(IsOtherTls(rejected, {.secret = own, .purpose = Purpose::kMesh})) << rejected;
    EXPECT_EQ(Report(own, 5), absl::OkStatus());
    EXPECT_TRUE(Eventually([&] { return reports() == std::vector<uint64_t>{5}; }));
    // It is for nothing else, and only members can do it.
    EXPECT_TRUE(absl::IsPermissionDenied(Report(OtherSecret(), 6)));
    EXPECT_TRUE(Join(listener_encrypts ? encrypted : plain).ok());
    (void)Taken();
    EXPECT_EQ(reports(), std::vector<uint64_t>{5});
    listener_.reset();
    reports_.clear();
  }
}

TEST_F(TlsListener, AFloodDelaysNobodyAndHoldsNoThread) {
  const JobSecret secret = TestSecret().WithTls(Auto());
  Listen(secret);
  const std::string record = absl::StrCat(std::string("\x16\3\1\1\0", 5), std::string(256, 'x'));
  const std::string hello = absl::StrCat("psring\2\x83", std::string(56, 'x'));
  for (const std::string& bytes : {std::string(), record, hello}) {
    Flood flood("127.0.0.1", listener_->port(), bytes);
    const size_t threads = Threads();
    ASSERT_TRUE(Eventually([&] { return flood.opened() >= Flood::kOpen; }));
    EXPECT_EQ(Threads(), threads);
    for (int i = 0; i < 5; ++i) {
      const MonotonicTime begin = MonotonicNow();
      const auto member = Join(secret);
      EXPECT_TRUE(member.ok()) << member.status();
      EXPECT_LT(MonotonicNow() - begin, Flood::kMaxDelay);
    }
  }
}

TEST_F(TlsListener, TheNetworkDoesNotSeeTheText) {
  const std::string text = "the weights of this job";
  for (const bool encrypted : {false, true}) {
    const JobSecret secret = encrypted ? TestSecret().WithTls(Auto()) : TestSecret();
    Listen(secret);
    Relay relay("127.0.0.1", {.host = "127.0.0.1", .port = listener_->port()});
    MemberSocket member = Join(secret, relay.port()).value(), taken = Taken();
    Write(member, text);
    EXPECT_EQ(Read(taken, text.size()), text);
    Write(taken, text);
    EXPECT_EQ(Read(member, text.size()), text);
    const std::string seen = relay.seen();
    EXPECT_GT(seen.size(), 2 * text.size());
    EXPECT_EQ(absl::StrContains(seen, text), !encrypted);
    EXPECT_FALSE(absl::StrContains(seen, "psring job")) << "the name in certificates is encrypted, too";
  }
}

TEST_F(TlsListener, AnotherProcessWithACertificateCannotRelayTheAuthentication) {
  // It has a certificate of the same CA, but not the job's secret: it ends both TLS connections, and passes
  // on what is inside them.
  const Context tls = Auto(), own = Auto();
  Listen(TestSecret().WithTls(tls));
  const TcpListener between = *ListenTcp("127.0.0.1");
  std::thread relay([&] {
    ASSERT_TRUE(AwaitSocket(between.socket.get(), POLLIN, Soon(), "a client").ok());
    FileDescriptor client(accept4(between.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    FileDescriptor server = *ConnectTcp("127.0.0.1", listener_->port(), Soon());
    Write(server, Read(client, 64));
    Write(client, Read(server, 8));
    auto to_client = EncryptFrom(std::move(client), own);
    auto to_server = EncryptTo(std::move(server), own, "the listener", Soon());
    ASSERT_TRUE(to_client.ok() && to_server.ok());
    MemberSocket members_end = to_client->Take(), listeners_end = to_server->Take();
    Write(members_end, Read(listeners_end, 48));
  });
  EXPECT_TRUE(absl::IsPermissionDenied(Join(TestSecret().WithTls(tls), between.port).status()));
  relay.join();
  EXPECT_EQ(members(), 0u);
}

}  // namespace
}  // namespace psring
