// Encrypted connections behave as TCP connections do, and only members of the job get one.
#include "common/net/tls.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/wall_time.h"
#include "common/net/link_shaper.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls/tls_certificate.h"
#include "tests/common/net/tls_testing.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/site_certificates.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

struct Encrypted {
  Context clients, servers;  // connections of gRPC end with their context
  MemberSocket client = {}, server = {};
  absl::StatusOr<std::string> client_binding = "", server_binding = "";
};

Encrypted Connect(const Context& clients, const Context& servers) {
  TcpPair ends = MakeTcpPair();
  Encrypted made{.clients = clients, .servers = servers};
  // A failed handshake closes its socket.
  const auto complete = [](absl::StatusOr<TlsHandshake> handshake,
                           MemberSocket& socket) -> absl::StatusOr<std::string> {
    PSRING_RETURN_IF_ERROR(handshake.status());
    socket = handshake->Take();
    return handshake->binding();
  };
  auto server = std::async(std::launch::async, [&] {
    return complete(EncryptFrom(std::move(ends.server), servers), made.server);
  });
  made.client_binding =
      complete(EncryptTo(std::move(ends.client), clients, "the server", Soon()), made.client);
  made.server_binding = server.get();
  return made;
}

Encrypted Connected() {
  Encrypted made = Connect(Auto(), Auto());
  EXPECT_TRUE(made.client_binding.ok()) << made.client_binding.status();
  EXPECT_TRUE(made.server_binding.ok()) << made.server_binding.status();
  return made;
}

// As gRPC uses a connection.
struct ClearText {
  explicit ClearText(Encrypted connected)
      : ends(std::move(connected)),
        client(*ends.client.TakeClearText()),
        server(*ends.server.TakeClearText()) {}

  Encrypted ends;
  FileDescriptor client, server;
};

std::string Pattern(size_t bytes, int seed) {
  std::string text(bytes, 0);
  uint32_t state = static_cast<uint32_t>(seed) + 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

constexpr size_t kLarge = 5'000'000;  // more than all buffers hold

TEST(Tls, BothEndsKnowBytesOfThisConnectionOnly) {
  const Encrypted one = Connected(), other = Connected();
  EXPECT_EQ(one.client_binding->size(), 32u);
  EXPECT_EQ(*one.client_binding, *one.server_binding);
  EXPECT_NE(*one.client_binding, *other.client_binding);
}

// Two threads use each end.
template <typename End>
void ExpectCarries(End& client, End& server) {
  const std::string there = Pattern(kLarge, 1), back = Pattern(kLarge, 2);
  std::thread writer([&] { Write(client, there); });
  std::thread answerer([&] { Write(server, back); });
  auto received = std::async(std::launch::async, [&] { return Read(client, kLarge); });
  EXPECT_TRUE(Read(server, kLarge) == there);
  EXPECT_TRUE(received.get() == back);
  writer.join();
  answerer.join();
}

TEST(Tls, CarriesMoreThanTheBuffersHoldInBothDirectionsAtOnce) {
  for (const bool reads_ahead : {false, true}) {
    Encrypted ends = Connected();
    if (reads_ahead) ends.client.ReadAhead();
    if (reads_ahead) ends.server.ReadAhead();
    ExpectCarries(ends.client, ends.server);
  }
  ClearText clear(Connected());
  ExpectCarries(clear.client, clear.server);
}

TEST(Tls, NewKeysDoNotDisturbTheData) {
  Encrypted ends = Connect(Auto(TestSecret(), 100'000), Auto(TestSecret(), 70'000));
  ExpectCarries(ends.client, ends.server);
}

// A connection that is closed with unread bytes loses what it still has to send.
TEST(Tls, WhoHasReadAllDataLeavesNoNewKeyUnread) {
  Encrypted ends = Connect(Auto(TestSecret(), 100), Auto());
  for (int i = 0; i < 3; ++i) {
    Write(ends.client, std::string(100, 'x'));
    EXPECT_EQ(Read(ends.server, 100), std::string(100, 'x'));
    pollfd waiting = {ends.server.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 0), 0) << i;
  }
}

TEST(Tls, AShapedConnectionIsEncryptedBeforeItIsShaped) {
  LinkShaper shaper({.bits_per_s = 1e11, .burst_bytes = 1 << 20});
  Encrypted ends = Connected();
  ASSERT_EQ(shaper.Shape(ends.client), absl::OkStatus());
  ExpectCarries(ends.client, ends.server);
  // What leaves the socket under TLS is no text.
  int local[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, local), 0);
  const FileDescriptor before = ends.client.TakeDescriptor(), seen(local[1]);
  ends.client.SetDescriptor(FileDescriptor(local[0]));
  Write(ends.client, "the weights");
  std::vector<char> bytes(1000);
  const ssize_t got = recv(seen.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  EXPECT_GT(got, 11);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()).find("weights"), std::string::npos);
}

TEST(Tls, PartsOfAnyLengthAreOneStream) {
  Encrypted ends = Connected();
  const std::string text = Pattern(200'000, 1);
  const size_t lengths[] = {0, 80, 16'304, 1, 0, 100'000, 16'384, 67'230, 1};
  std::vector<iovec> parts;
  size_t total = 0;
  for (const size_t length : lengths) {
    parts.push_back({const_cast<char*>(text.data()) + total, length});
    total += length;
  }
  ASSERT_EQ(total, text.size());
  ASSERT_EQ(*ends.client.Send(parts), total) << "it fits into the buffers";
  std::string received(total, 0);
  const iovec to[] = {{received.data(), 3}, {received.data() + 3, 50'000}, {received.data() + 50'003, 1}};
  EXPECT_EQ(AwaitSocket(ends.server.fd(), POLLIN, Soon(), ""), absl::OkStatus());
  size_t got = *ends.server.Receive(to);
  while (got < total && AwaitSocket(ends.server.fd(), POLLIN, Soon(), "").ok()) {
    got += *ends.server.Receive(received.data() + got, total - got);
  }
  EXPECT_TRUE(received == text);
}

TEST(Tls, PollReportsWhatHasNotBeenReceived) {
  Encrypted ends = Connected();
  for (int i = 0; i < 3; ++i) Write(ends.client, "text");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(AwaitSocket(ends.server.fd(), POLLIN, Soon(), "text"), absl::OkStatus()) << i;
    EXPECT_EQ(Read(ends.server, 4), "text");
  }
  EXPECT_EQ(*ends.server.Receive(std::string(4, 0).data(), 4), 0u);
}

// A frame that is sent as the socket accepts it.
TEST(Tls, ASendThatWasIncompleteContinues) {
  Encrypted ends = Connected();
  const std::string text = Pattern(kLarge, 1);
  std::string received;
  std::vector<char> piece(1'000'000);
  for (size_t sent = 0, turns = 0; received.size() < text.size() && turns < 100'000; ++turns) {
    if (sent < text.size()) sent += *ends.client.Send(text.data() + sent, text.size() - sent);
    received.append(piece.data(), *ends.server.Receive(piece.data(), piece.size()));
  }
  EXPECT_TRUE(received == text);
}

TEST(Tls, AConnectionThatWasCutOffIsNotOneThatEnded) {
  for (const bool is_cut_off : {false, true}) {
    Encrypted ends = Connected();
    const std::string text = Pattern(150'000, 1);  // fits into the buffers
    Write(ends.client, text);
    if (is_cut_off) {
      EXPECT_EQ(shutdown(ends.client.fd(), SHUT_WR), 0);
    } else {
      ends.client = MemberSocket();
    }
    absl::Status end;
    EXPECT_TRUE(Read(ends.server, SIZE_MAX, &end) == text) << "the end comes after all data";
    EXPECT_EQ(end,
              absl::UnavailableError(is_cut_off ? "the connection was cut off" : "the connection ended"));
    EXPECT_EQ(ends.server.Receive(std::string(1, 0).data(), 1).status(), end) << "each time";
  }
}

TEST(Tls, ChangedBytesAreAnError) {
  Encrypted ends = Connected();
  Write(FileDescriptor(dup(ends.client.fd())), std::string(100, 'x'));
  absl::Status end;
  EXPECT_EQ(Read(ends.server, SIZE_MAX, &end), "");
  EXPECT_TRUE(absl::IsUnavailable(end));
  EXPECT_THAT(end.message(), Has("cannot receive: TLS: "));
  EXPECT_FALSE(ends.server.Send("x", 1).ok());
}

// As for a stream that is polled after a Receive that returned less than was asked for.
TEST(Tls, PollReportsAnErrorThatFollowsData) {
  Encrypted ends = Connected();
  ends.server.ReadAhead();
  Write(ends.client, "text");
  Write(FileDescriptor(dup(ends.client.fd())), std::string(100, 'x'));
  std::string bytes(1000, 0);
  const auto have_arrived = [&] {
    return recv(ends.server.fd(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT) > 100;
  };
  ASSERT_TRUE(Eventually(have_arrived));
  EXPECT_EQ(*ends.server.Receive(bytes.data(), bytes.size()), 4u);
  pollfd waiting = {ends.server.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 0), 1);
  EXPECT_THAT(ends.server.Receive(bytes.data(), 1).status().message(), Has("cannot receive: TLS: "));
}

TEST(Tls, WritesFailWhenThePeerHasClosed) {
  Encrypted ends = Connected();
  ends.server = MemberSocket();
  EXPECT_TRUE(Eventually([&] { return absl::IsUnavailable(ends.client.Send("x", 1).status()); }));
  ClearText clear(Connected());
  clear.server = FileDescriptor();
  EXPECT_TRUE(
      Eventually([&] { return send(clear.client.get(), "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE; }));
  EXPECT_EQ(Read(clear.client), "");
}

TEST(TlsClearText, AfterAHalfCloseTheOtherDirectionContinues) {
  const ClearText ends(Connected());
  const std::string there = Pattern(kLarge, 1), back = Pattern(kLarge, 2);
  std::thread client([&] {
    Write(ends.client, there);
    EXPECT_EQ(shutdown(ends.client.get(), SHUT_WR), 0);
  });
  EXPECT_TRUE(Read(ends.server) == there) << "the end comes after all data";
  client.join();
  std::thread server([&] {
    Write(ends.server, back);
    EXPECT_EQ(shutdown(ends.server.get(), SHUT_WR), 0);
  });
  EXPECT_TRUE(Read(ends.client) == back);
  server.join();
}

TEST(TlsClearText, WhatWasWrittenBeforeTheContextEndsArrives) {
  Context clients = Auto();
  ClearText ends(Connect(clients, Auto()));
  ends.ends.clients.reset();
  ends.ends.client = MemberSocket();
  const std::string text = Pattern(150'000, 1);
  Write(ends.client, text);
  clients.reset();  // at the end of a process, when its connections may still be open
  EXPECT_TRUE(Read(ends.server) == text);
  EXPECT_EQ(Read(ends.client), "");
}

TEST(Tls, AConnectionNeedsNoThreadAndNoOtherDescriptor) {
  const Context clients = Auto(), servers = Auto();
  (void)Connect(clients, servers);  // loads what OpenSSL needs
  const size_t threads = Threads(), descriptors = Descriptors();
  {
    const Encrypted ends = Connect(clients, servers);
    EXPECT_TRUE(Eventually([&] { return Threads() == threads; }));
    EXPECT_EQ(Descriptors(), descriptors + 2);
  }
  EXPECT_EQ(Descriptors(), descriptors);
}

TEST(TlsClearText, AClosedConnectionLeavesNoThreadAndNoDescriptor) {
  const Context clients = Auto(), servers = Auto();
  (void)Connect(clients, servers);  // loads what OpenSSL needs
  const size_t first_threads = Threads(), first_descriptors = Descriptors();
  for (int i = 0; i < 40; ++i) (void)ClearText(Connect(clients, servers));
  // From now on all threads exist that encrypt, with a descriptor each.
  const size_t threads = Threads();
  size_t before = 0;
  EXPECT_TRUE(Eventually([&] {
    before = Descriptors();
    return before <= first_descriptors + threads - first_threads;
  }));
  for (int i = 0; i < 5; ++i) {
    ClearText ends(Connect(clients, servers));
    if (i % 2 == 0) Write(ends.client, Pattern(kLarge / 100, i));  // which nobody reads
    (i % 2 == 0 ? ends.server : ends.client) = FileDescriptor();
  }
  EXPECT_TRUE(Eventually([&] { return Threads() <= threads && Descriptors() <= before; }))
      << Threads() << " threads, " << Descriptors() << " descriptors, not " << before;
}

class TlsFiles : public testing::Test {
 protected:
  TlsFiles() {
    for (const char* const part : {"ours", "other"}) std::filesystem::create_directory(folder_ / part);
    ours_.emplace(folder_ / "ours", TestSecret());
    other_.emplace(folder_ / "other", OtherSecret());
  }

  static Context Load(const std::string& choice) {
    auto context = TlsContext::Make(choice, TestSecret());
    EXPECT_TRUE(context.ok()) << context.status();
    return context.value_or(nullptr);
  }
  static std::string Refused(const std::string& choice) {
    const absl::Status status = TlsContext::Make(choice, TestSecret()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), Lacks("\n"));
    return std::string(status.message());
  }
  static std::string Choice(const std::string& certificate, const std::string& key, const std::string& ca) {
    return absl::StrCat(certificate, ",", key, ",", ca);
  }

  const TestFolder folder_;
  std::optional<SiteCertificates> ours_, other_;
};

TEST_F(TlsFiles, CertificatesOfOneCaAreAccepted) {
  Encrypted ends = Connect(Load(ours_->Issue("a")), Load(ours_->Issue("b")));
  ASSERT_TRUE(ends.client_binding.ok()) << ends.client_binding.status();
  Write(ends.client, "text");
  EXPECT_EQ(Read(ends.server, 4), "text");
}

TEST_F(TlsFiles, AnErrorNamesTheFileAndWhatToDo) {
  const std::string good = ours_->Issue("a"), ca = ours_->ca(), none = folder_ / "none.pem";
  const std::string certificate = ours_->certificate("a"), key = ours_->key("a");
  EXPECT_THAT(Refused(Choice(none, key, ca)), Has(none));
  EXPECT_EQ(Refused(Choice(certificate, none, ca)), absl::StrCat("--tls: ", none, " does not exist"));
  EXPECT_THAT(Refused(Choice(certificate, key, none)), Has(none));
  EXPECT_EQ(Refused(Choice(key, key, ca)),
            absl::StrCat("--tls: ", key, " contains no certificate in PEM format"));
  ours_->Issue("b");
  EXPECT_EQ(Refused(Choice(certificate, ours_->key("b"), ca)),
            absl::StrCat("--tls: ", ours_->key("b"), " is not the key of the certificate in ", certificate));
  EXPECT_THAT(Refused(Choice(certificate, key, other_->ca())),
              Has(absl::StrCat(certificate, " is not valid with the CA in ", other_->ca())));
  const absl::Time now = WallNow();
  EXPECT_THAT(Refused(ours_->Issue("old", now - absl::Hours(2), now - absl::Hours(1))),
              Has("(certificate has expired); renew it"));
  EXPECT_THAT(Refused(ours_->Issue("new", now + absl::Hours(1), now + absl::Hours(2))),
              Has("check this machine's clock"));
  std::ofstream(certificate) << "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  EXPECT_EQ(Refused(good), absl::StrCat("--tls: ", certificate, " contains no certificate in PEM format"));
}

TEST_F(TlsFiles, AKeyThatOthersCanReadIsRejected) {
  const std::string choice = ours_->Issue("a"), key = ours_->key("a");
  ASSERT_EQ(chmod(key.c_str(), 0644), 0);
  EXPECT_EQ(Refused(choice),
            absl::StrCat("--tls: the key in ", key, " is accessible to other users; run: chmod 600 ", key,
                         " (in Kubernetes: defaultMode: 0400)"));
}

TEST_F(TlsFiles, CertificatesOfAnotherCaAreRejectedOnBothSides) {
  const Encrypted ends = Connect(Load(ours_->Issue("a")), Load(other_->Issue("b")));
  EXPECT_TRUE(absl::IsPermissionDenied(ends.client_binding.status()));
  EXPECT_THAT(ends.client_binding.status().message(),
              Has(absl::StrCat("the server has a certificate that ", ours_->ca(), " does not accept")));
  EXPECT_TRUE(absl::IsPermissionDenied(ends.server_binding.status())) << ends.server_binding.status();

  // This client accepts both CAs, so the server rejects it.
  std::ofstream both(folder_ / "both.pem");
  for (const std::string& ca : {ours_->ca(), other_->ca()}) both << std::ifstream(ca).rdbuf();
  both.close();
  ours_->Issue("c");
  const Encrypted later = Connect(
      Load(Choice(ours_->certificate("c"), ours_->key("c"), folder_ / "both.pem")), Load(other_->Issue("b")));
  EXPECT_TRUE(absl::IsPermissionDenied(later.client_binding.status()));
  EXPECT_THAT(later.client_binding.status().message(),
              Has("the server does not accept this process's certificate"));
  EXPECT_TRUE(absl::IsPermissionDenied(later.server_binding.status())) << later.server_binding.status();
}

TEST(Tls, AnotherJobsCertificatesAreRejected) {
  const Encrypted ends = Connect(Auto(OtherSecret()), Auto());
  EXPECT_TRUE(absl::IsPermissionDenied(ends.client_binding.status()));
  EXPECT_THAT(ends.client_binding.status().message(),
              Has("the server has another job's secret or another --tls"));
  EXPECT_TRUE(absl::IsPermissionDenied(ends.server_binding.status())) << ends.server_binding.status();
}

// What the server says about a client of plain OpenSSL with this certificate (null: none).
absl::Status VerdictOn(X509* certificate, EVP_PKEY* key, int version = TLS1_3_VERSION) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL's own sockets raise it
  const Context context = Auto();
  TcpPair ends = MakeTcpPair();
  auto client = std::async(std::launch::async, [&] {
    SSL_CTX* const made = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(made, version);
    if (certificate != nullptr) {
      EXPECT_EQ(SSL_CTX_use_certificate(made, certificate), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey(made, key), 1);
    }
    SSL* const ssl = SSL_new(made);
    SSL_set_fd(ssl, ends.client.get());
    int result = 0;
    while ((result = SSL_connect(ssl)) != 1 && SSL_get_error(ssl, result) == SSL_ERROR_WANT_READ)
      (void)AwaitSocket(ends.client.get(), POLLIN, Soon(), "the server");
    ERR_clear_error();
    SSL_free(ssl);
    SSL_CTX_free(made);
  });
  const absl::Status verdict = EncryptFrom(std::move(ends.server), context).status();
  client.get();
  return verdict;
}

TEST(Tls, AServerRejectsInvalidCertificates) {
  const Authority ours = *MakeAuthority(AuthoritySeed(TestSecret()), "psring job"),
                  others = *MakeAuthority(AuthoritySeed(OtherSecret()), "psring job");
  const KeyPtr key = *NewKey();
  const absl::Time now = WallNow();
  const auto issue = [&](const Authority& authority, absl::Duration begin, absl::Duration end) {
    return *Issue(authority, *key, now + begin, now + end);
  };
  const auto day = absl::Hours(24);
  EXPECT_TRUE(VerdictOn(issue(ours, -day, day).get(), key.get()).ok()) << "valid";
  const absl::Status expired = VerdictOn(issue(ours, -2 * day, -day).get(), key.get());
  EXPECT_TRUE(absl::IsPermissionDenied(expired)) << expired;
  EXPECT_THAT(expired.message(), Has("expired"));
  EXPECT_TRUE(absl::IsPermissionDenied(VerdictOn(issue(others, -day, day).get(), key.get())));
  EXPECT_EQ(VerdictOn(nullptr, nullptr),
            absl::PermissionDeniedError(absl::StrCat("has sent no certificate; ", kSameTls)));
  EXPECT_TRUE(absl::IsFailedPrecondition(VerdictOn(issue(ours, -day, day).get(), key.get(), TLS1_2_VERSION)));
}

TEST(Tls, OtherProtocolsAreRejected) {
  const Context context = Auto();
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0'), std::string(100, '\x16'),
        std::string("\x16\3\1\xff\xff", 5) + std::string(1000, 'x')}) {
    TcpPair ends = MakeTcpPair();
    Write(ends.client, text);
    ends.client = FileDescriptor();
    EXPECT_FALSE(EncryptFrom(std::move(ends.server), context).ok()) << text;
  }
  for (const std::string& text : {std::string("SSH-2.0-OpenSSH_9.2p1\r\n"), std::string(100, '\0')}) {
    TcpPair ends = MakeTcpPair();
    Write(ends.server, text);
    EXPECT_TRUE(absl::IsFailedPrecondition(EncryptTo(std::move(ends.client), context, "it", Soon()).status()))
        << text;
  }
}

TEST(Tls, TheClientWaitsUntilItsDeadline) {
  TcpPair ends = MakeTcpPair();
  EXPECT_EQ(
      EncryptTo(std::move(ends.client), Auto(), "it", MonotonicNow() + absl::Milliseconds(300)).status(),
      absl::DeadlineExceededError("it: no answer in time"));
}

TEST(Tls, ACloseDuringTheHandshakeIsAnErrorThatMayBeTriedAgain) {
  const Context context = Auto();
  TcpPair ends = MakeTcpPair();
  ends.server = FileDescriptor();
  EXPECT_TRUE(absl::IsUnavailable(EncryptTo(std::move(ends.client), context, "it", Soon()).status()));
  TcpPair others = MakeTcpPair();
  others.client = FileDescriptor();
  EXPECT_TRUE(absl::IsUnavailable(EncryptFrom(std::move(others.server), context).status()));
}

}  // namespace
}  // namespace psring
