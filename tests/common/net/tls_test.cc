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
#include "common/base/deadline.h"
#include "common/base/wall_time.h"
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
  Context clients, servers;  // connections end with their context
  FileDescriptor client, server;
  absl::StatusOr<std::string> client_binding = "", server_binding = "";
};

Encrypted Connect(const Context& clients, const Context& servers) {
  TcpPair ends = MakeTcpPair();
  Encrypted made{.clients = clients,
                 .servers = servers,
                 .client = std::move(ends.client),
                 .server = std::move(ends.server)};
  auto server = std::async(std::launch::async, [&] {
    auto binding = EncryptFrom(made.server, servers);
    if (!binding.ok()) made.server = FileDescriptor();
    return binding;
  });
  made.client_binding = EncryptTo(made.client, clients, "the server", Soon());
  if (!made.client_binding.ok()) made.client = FileDescriptor();
  made.server_binding = server.get();
  return made;
}

Encrypted Connected() {
  Encrypted made = Connect(Auto(), Auto());
  EXPECT_TRUE(made.client_binding.ok()) << made.client_binding.status();
  EXPECT_TRUE(made.server_binding.ok()) << made.server_binding.status();
  return made;
}

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

TEST(Tls, CarriesMoreThanTheBuffersHoldInBothDirectionsAtOnce) {
  const Encrypted ends = Connected();
  const std::string there = Pattern(kLarge, 1), back = Pattern(kLarge, 2);
  std::thread client([&] { Write(ends.client, there); });
  std::thread server([&] { Write(ends.server, back); });
  auto received = std::async(std::launch::async, [&] { return Read(ends.client, kLarge); });
  EXPECT_TRUE(Read(ends.server, kLarge) == there);
  EXPECT_TRUE(received.get() == back);
  client.join();
  server.join();
}

TEST(Tls, NewKeysDoNotDisturbTheData) {
  const Encrypted ends = Connect(Auto(TestSecret(), 100'000), Auto(TestSecret(), 70'000));
  const std::string there = Pattern(kLarge, 1), back = Pattern(kLarge, 2);
  std::thread client([&] { Write(ends.client, there); });
  EXPECT_TRUE(Read(ends.server, kLarge) == there);
  client.join();
  std::thread server([&] { Write(ends.server, back); });
  EXPECT_TRUE(Read(ends.client, kLarge) == back);
  server.join();
}

TEST(Tls, AfterAHalfCloseTheOtherDirectionContinues) {
  const Encrypted ends = Connected();
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

TEST(Tls, WhatWasWrittenBeforeTheCloseArrives) {
  Encrypted ends = Connected();
  const std::string text = Pattern(150'000, 1);  // fits into the buffers
  Write(ends.client, text);
  ends.client = FileDescriptor();
  EXPECT_TRUE(Read(ends.server) == text);
}

TEST(Tls, WhatWasWrittenBeforeTheContextEndsArrives) {
  Context clients = Auto();
  Encrypted ends = Connect(clients, Auto());
  ends.clients.reset();
  const std::string text = Pattern(150'000, 1);
  Write(ends.client, text);
  clients.reset();  // at the end of a process, when its connections may still be open
  EXPECT_TRUE(Read(ends.server) == text);
  EXPECT_EQ(Read(ends.client), "");
}

TEST(Tls, WritesFailWhenThePeerHasClosed) {
  Encrypted ends = Connected();
  ends.server = FileDescriptor();
  EXPECT_TRUE(
      Eventually([&] { return send(ends.client.get(), "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE; }));
  EXPECT_EQ(Read(ends.client), "");
}

TEST(Tls, AClosedConnectionLeavesNoThreadAndNoDescriptor) {
  const Context clients = Auto(), servers = Auto();
  (void)Connect(clients, servers);  // loads what OpenSSL needs
  const size_t first_threads = Threads(), first_descriptors = Descriptors();
  for (int i = 0; i < 40; ++i) (void)Connect(clients, servers);
  // From now on all threads exist that encrypt, with a descriptor each.
  const size_t threads = Threads();
  size_t before = 0;
  EXPECT_TRUE(Eventually([&] {
    before = Descriptors();
    return before <= first_descriptors + threads - first_threads;
  }));
  for (int i = 0; i < 5; ++i) {
    Encrypted ends = Connect(clients, servers);
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
  const Encrypted ends = Connect(Load(ours_->Issue("a")), Load(ours_->Issue("b")));
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
  const absl::Status verdict = EncryptFrom(ends.server, context).status();
  ends.server = FileDescriptor();
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
    EXPECT_FALSE(EncryptFrom(ends.server, context).status().ok()) << text;
  }
  for (const std::string& text : {std::string("SSH-2.0-OpenSSH_9.2p1\r\n"), std::string(100, '\0')}) {
    TcpPair ends = MakeTcpPair();
    Write(ends.server, text);
    EXPECT_TRUE(absl::IsFailedPrecondition(EncryptTo(ends.client, context, "it", Soon()).status())) << text;
  }
}

TEST(Tls, TheClientWaitsUntilItsDeadline) {
  TcpPair ends = MakeTcpPair();
  EXPECT_EQ(EncryptTo(ends.client, Auto(), "it", MonotonicNow() + absl::Milliseconds(300)).status(),
            absl::DeadlineExceededError("it: no answer in time"));
}

TEST(Tls, ACloseDuringTheHandshakeIsAnErrorThatMayBeTriedAgain) {
  const Context context = Auto();
  TcpPair ends = MakeTcpPair();
  ends.server = FileDescriptor();
  EXPECT_TRUE(absl::IsUnavailable(EncryptTo(ends.client, context, "it", Soon()).status()));
  TcpPair others = MakeTcpPair();
  others.client = FileDescriptor();
  EXPECT_TRUE(absl::IsUnavailable(EncryptFrom(others.server, context).status()));
}

}  // namespace
}  // namespace psring
