// Replies to valid and invalid requests; and no client prevents the server from stopping.
#include "common/net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <latch>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/deadline.h"

namespace psring {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

HttpReply Echo(const std::string& path) { return {.type = "text/x", .body = absl::StrCat("<", path, ">")}; }

std::string Said(const std::string& request, const HttpAccess& access = {.this_host_only = true}) {
  const HttpAnswer answer = AnswerHttp(request, access, Echo);
  return answer.complete ? answer.bytes : "(more)";
}

TEST(HttpMessage, TheReplyDependsOnThePathWithoutTheQuery) {
  const std::string said = Said("GET /a/b?c=d HTTP/1.1\r\nHost: localhost:80\r\n\r\n");
  EXPECT_THAT(said, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(said, HasSubstr("Content-Type: text/x\r\n"));
  EXPECT_THAT(said, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(said, testing::EndsWith("\r\n\r\n</a/b>"));
}

TEST(HttpMessage, HeadHasTheSameHeadersAndNoBody) {
  const std::string said = Said("HEAD /a HTTP/1.0\r\n\r\n");
  EXPECT_THAT(said, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(said, testing::EndsWith("\r\n\r\n"));
}

TEST(HttpMessage, AnIncompleteRequestHasNoReply) {
  const std::string request = "GET / HTTP/1.1\r\nHost: [::1]:9\r\n\r\n";
  for (size_t length = 0; length < request.size(); ++length)
    EXPECT_EQ(Said(request.substr(0, length)), "(more)");
  EXPECT_THAT(Said(request), HasSubstr("200"));
}

TEST(HttpMessage, InvalidRequestsAreRejected) {
  EXPECT_THAT(Said("\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Said("GET\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Said("GET / FTP/1\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Said("GET http://x/ HTTP/1.1\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Said("GET / HTTP/2.0\r\n\r\n"), HasSubstr(" 505 "));
  EXPECT_THAT(Said("POST / HTTP/1.1\r\n\r\n"), HasSubstr("Allow: GET, HEAD"));
  EXPECT_THAT(Said(std::string("GET /\0 HTTP/1.1\r\n\r\n", 19)), HasSubstr("HTTP/1.1 "));
  EXPECT_THAT(Said(std::string(kLargestHttpRequest, 'x')), HasSubstr(" 431 "));
  EXPECT_THAT(Said(absl::StrCat("GET / HTTP/1.1\r\nx: ", std::string(9000, 'x'), "\r\n\r\n")),
              HasSubstr(" 431 "));
}

TEST(HttpMessage, OnTheLoopbackOtherHostNamesAreRejected) {
  EXPECT_THAT(Said("GET / HTTP/1.1\r\nHOST:  evil.example\r\n\r\n"), HasSubstr(" 403 "));
  EXPECT_THAT(Said("GET / HTTP/1.1\r\nHost: 127.evil.example\r\n\r\n"), HasSubstr(" 403 "));
  EXPECT_THAT(Said("GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example:80\r\n\r\n"), HasSubstr(" 403 "));
  for (const char* host : {"[::1].evil.example", "[::1", "[::1]evil", "localhost:80.evil.example", "",
                           "127.1", "localhost.evil.example", "::1", "[127.0.0.1.evil.example]:80"}) {
    EXPECT_THAT(Said(absl::StrCat("GET / HTTP/1.1\r\nHost: ", host, "\r\n\r\n")), HasSubstr(" 403 ")) << host;
  }
  for (const char* host :
       {"127.0.0.1:4242", "127.86.0.1", "localhost", "LOCALHOST:80", "[::1]", "[::1]:80"}) {
    EXPECT_THAT(Said(absl::StrCat("GET / HTTP/1.1\r\nHost: ", host, "\r\n\r\n")), HasSubstr(" 200 ")) << host;
  }
  EXPECT_THAT(Said("GET / HTTP/1.1\r\nHost: node7:4242\r\n\r\n", {.this_host_only = false}),
              HasSubstr(" 200 "));
}

TEST(HttpMessage, ATokenIsNeededInTheQueryOrAHeader) {
  const HttpAccess access = {.token = "0123abcd"};
  for (const char* request : {"GET /a HTTP/1.1", "GET /a?token= HTTP/1.1", "GET /a?token=0123abce HTTP/1.1",
                              "GET /a?token=0123abcd0 HTTP/1.1", "GET /a?nottoken=0123abcd HTTP/1.1",
                              "GET /token=0123abcd HTTP/1.1", "GET /a HTTP/1.1\r\nAuthorization: Bearer x",
                              "GET /a HTTP/1.1\r\nAuthorization: Basic 0123abcd"}) {
    EXPECT_THAT(Said(absl::StrCat(request, "\r\n\r\n"), access), HasSubstr(" 403 Forbidden\r\n")) << request;
  }
  for (const char* request : {"GET /a?token=0123abcd HTTP/1.1", "GET /a?b=c&token=0123abcd HTTP/1.1",
                              "GET /a HTTP/1.1\r\nAuthorization: Bearer 0123abcd"}) {
    EXPECT_THAT(Said(absl::StrCat(request, "\r\n\r\n"), access), testing::EndsWith("</a>")) << request;
  }
}

TEST(HttpServer, NeedsATokenExceptOnTheLoopback) {
  const auto open = HttpServer::Start({.host = "127.0.0.1", .token = "abc"}, Echo);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_THAT((*open)->url("/x"), testing::EndsWith("/x"));
  const auto given = HttpServer::Start({.host = "0.0.0.0", .token = "abc"}, Echo);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ((*given)->url("/x"), absl::StrCat("http://127.0.0.1:", (*given)->port(), "/x?token=abc"));
  const auto random = HttpServer::Start({.host = "0.0.0.0"}, Echo);
  ASSERT_TRUE(random.ok()) << random.status();
  EXPECT_THAT((*random)->url("/x"), testing::ContainsRegex("/x[?]token=[0-9a-f]{32}$"));
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    auto started = HttpServer::Start({}, Echo);
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  FileDescriptor Connect() {
    auto socket = ConnectTcp("127.0.0.1", server_->port(), MonotonicNow() + absl::Seconds(10));
    EXPECT_TRUE(socket.ok()) << socket.status();
    return *std::move(socket);
  }
  static void Send(const FileDescriptor& socket, const std::string& text) {
    EXPECT_TRUE(WriteAll(socket.get(), text.data(), text.size(), MonotonicNow() + absl::Seconds(10)).ok());
  }
  // Until the other end has closed.
  static std::string ReadAll(const FileDescriptor& socket) {
    std::string text;
    char block[4096];
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(20);
    while (MonotonicNow() < deadline) {
      pollfd wait{socket.get(), POLLIN, 0};
      poll(&wait, 1, 100);
      const ssize_t n = recv(socket.get(), block, sizeof block, MSG_DONTWAIT);
      if (n == 0) return text;
      if (n > 0) text.append(block, static_cast<size_t>(n));
      if (n < 0 && errno != EAGAIN) return text;
    }
    ADD_FAILURE() << "the server does not close";
    return text;
  }

  std::unique_ptr<HttpServer> server_;
};

// Otherwise a client could keep the server's thread reading for as long as it sends.
TEST_F(HttpServerTest, DiscardsLittleOfWhatFollowsARequest) {
  std::latch sent(1);
  const auto server = HttpServer::Start({}, [&](const std::string& path) {
    sent.wait();
    return Echo(path);
  });
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = ConnectTcp("127.0.0.1", (*server)->port(), MonotonicNow() + absl::Seconds(10));
  ASSERT_TRUE(client.ok()) << client.status();
  Send(*client, "GET / HTTP/1.1\r\n\r\n");
  const std::string block(1 << 16, 'x');
  ssize_t more = 0;
  for (ssize_t n = 0; more < (1 << 20) && n >= 0; more += n) {
    n = send(client->get(), block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  ASSERT_GT(more, 1 << 17);
  sent.count_down();
  EXPECT_THAT(ReadAll(*client), StartsWith("HTTP/1.1 200 OK"));
  // The server has closed the connection without having read the rest: it is reset.
  pollfd reset = {client->get(), 0, 0};
  EXPECT_EQ(poll(&reset, 1, 20'000), 1);
  EXPECT_NE(reset.revents & POLLERR, 0);
}

TEST_F(HttpServerTest, RepliesAtItsUrl) {
  EXPECT_EQ(server_->url(), absl::StrCat("http://127.0.0.1:", server_->port()));
  const FileDescriptor socket = Connect();
  Send(socket, "GET /x HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(socket), testing::EndsWith("</x>"));
}

// One line for all requests of 10 s, and one at the end.
TEST_F(HttpServerTest, RejectedRequestsAreCountedOnStderr) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) {
    const FileDescriptor socket = Connect();
    Send(socket, "GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    EXPECT_THAT(ReadAll(socket), StartsWith("HTTP/1.1 403 "));
  }
  const FileDescriptor valid = Connect();
  Send(valid, "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(ReadAll(valid), StartsWith("HTTP/1.1 200 "));
  const std::string at =
      absl::StrCat("at 127.0.0.1:", server_->port(), " for another host, last from 127.0.0.1:");
  server_.reset();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, StartsWith(absl::StrCat("psring: rejected 1 request ", at)));
  EXPECT_THAT(log, HasSubstr(absl::StrCat("\npsring: rejected 4 requests ", at)));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
}

TEST_F(HttpServerTest, RepliesToManyClients) {
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 8; ++reader) {
    readers.emplace_back([this, reader] {
      for (int i = 0; i < 5; ++i) {
        const FileDescriptor socket = Connect();
        Send(socket, absl::StrCat("GET /", reader, " HTTP/1.1\r\n\r\n"));
        EXPECT_THAT(ReadAll(socket), testing::EndsWith(absl::StrCat("</", reader, ">")));
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
}

TEST_F(HttpServerTest, ALargeReplyArrivesComplete) {
  const std::string body(8 << 20, 'y');
  auto large = HttpServer::Start({}, [&](const std::string&) { return HttpReply{.body = body}; });
  ASSERT_TRUE(large.ok());
  server_ = *std::move(large);
  const FileDescriptor socket = Connect();
  Send(socket, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(ReadAll(socket).size(), body.size() + HttpBytes({.body = body}, true).size());
}

TEST_F(HttpServerTest, SilentInvalidAndLostClientsDoNotBlockOthers) {
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(Connect());
  Send(silent[39], "\x16\x03\x01 no HTTP at all");
  { const FileDescriptor gone = Connect(); }
  const FileDescriptor socket = Connect();
  Send(socket, "GET /x HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(socket), testing::EndsWith("</x>"));
}

TEST_F(HttpServerTest, AClientThatSendsSlowlyIsDisconnected) {
  const auto server = HttpServer::Start({.patience = absl::Milliseconds(200)}, Echo);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = ConnectTcp("127.0.0.1", (*server)->port(), MonotonicNow() + absl::Seconds(10));
  ASSERT_TRUE(client.ok()) << client.status();
  Send(*client, "GET / HTTP/1.1\r\nx: ");
  size_t sent = 0;
  while (sent < kLargestHttpRequest / 2 && send(client->get(), "x", 1, MSG_NOSIGNAL) == 1) {
    ++sent;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_LT(sent, kLargestHttpRequest / 2);
  EXPECT_EQ(ReadAll(*client), "");
}

TEST_F(HttpServerTest, HeadersThatDoNotEndAreRejected) {
  const FileDescriptor socket = Connect();
  Send(socket, "GET / HTTP/1.1\r\n");
  for (size_t sent = 0; sent < kLargestHttpRequest; sent += 6) Send(socket, "x: y\r\n");
  EXPECT_THAT(ReadAll(socket), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, StopsDuringARequest) {
  const FileDescriptor silent = Connect(), half = Connect();
  Send(half, "GET / HT");
  server_.reset();
  EXPECT_EQ(ReadAll(half), "");
}

TEST_F(HttpServerTest, APortInUseIsNamed) {
  const auto second = HttpServer::Start({.port = server_->port()}, Echo);
  EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat(":", server_->port())));
}

}  // namespace
}  // namespace psring
