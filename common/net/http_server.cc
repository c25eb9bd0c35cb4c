#include "common/net/http_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/net/address.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

constexpr size_t kMostConnections = 16;      // with more, the oldest is closed
constexpr size_t kMostDiscarded = 64 << 10;  // bytes after a request

struct Connection {
  FileDescriptor socket;
  MonotonicTime deadline;
  std::string received, sending;
  size_t sent = 0;
  bool answered = false;
};

// Reads, replies and writes as far as possible without waiting. False: the connection is finished.
bool Serve(Connection& connection, const HttpAccess& access, const HttpServer::Answer& answer,
           RejectionLog& rejections) {
  char block[4096];
  while (!connection.answered) {
    const ssize_t n = recv(connection.socket.get(), block, sizeof block, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    connection.received.append(block, static_cast<size_t>(n));
    HttpAnswer reply = AnswerHttp(connection.received, access, answer);
    connection.answered = reply.complete;
    if (reply.rejected) rejections.Add(PeerOf(connection.socket.get()));
    connection.sending = std::move(reply.bytes);
  }
  while (connection.sent < connection.sending.size()) {
    const ssize_t n = send(connection.socket.get(), connection.sending.data() + connection.sent,
                           connection.sending.size() - connection.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    connection.sent += static_cast<size_t>(n);
  }
  // What has arrived after the request is read, so that closing does not cut off our reply. A client may send
  // faster than we read.
  shutdown(connection.socket.get(), SHUT_WR);
  for (size_t rest = kMostDiscarded; rest > 0; rest -= sizeof block) {
    if (recv(connection.socket.get(), block, sizeof block, MSG_DONTWAIT) <= 0) break;
  }
  return false;
}

HttpAccess AccessOf(const HttpServerOptions& options) {
  constexpr size_t kTokenDigits = 32;
  if (IsLoopback(options.host)) return {.this_host_only = true};
  return {.token = options.token.empty() ? RandomToken(kTokenDigits) : options.token};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              Answer answer) {
  PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options.host, options.port));
  FileDescriptor end(eventfd(0, EFD_CLOEXEC));
  if (!end.valid()) return SystemError("cannot make an eventfd");
  fcntl(listener.socket.get(), F_SETFL, fcntl(listener.socket.get(), F_GETFL) | O_NONBLOCK);
  return std::unique_ptr<HttpServer>(
      new HttpServer(options, std::move(answer), std::move(listener), std::move(end)));
}

HttpServer::HttpServer(const HttpServerOptions& options, Answer answer, TcpListener listener,
                       FileDescriptor end)
    : host_(options.host),
      patience_(options.patience),
      access_(AccessOf(options)),
      answer_(std::move(answer)),
      listener_(std::move(listener)),
      rejections_("request",
                  absl::StrCat("at ", AddressText(host_, listener_.port),
                               access_.token.empty() ? " for another host" : " without its token")),
      end_(std::move(end)) {
  thread_ = std::thread([this] { Serve(); });
}

HttpServer::~HttpServer() {
  const uint64_t one = 1;
  PSRING_CHECK(write(end_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
}

std::string HttpServer::url(const std::string& path) const {
  const std::string host = !IsWildcard(host_) ? host_ : host_ == "::" ? "::1" : "127.0.0.1";
  return absl::StrCat("http://", AddressText(host, listener_.port), path,
                      access_.token.empty() ? "" : absl::StrCat("?token=", access_.token));
}

void HttpServer::Serve() {
  std::vector<Connection> connections;
  while (true) {
    std::vector<pollfd> waits = {{end_.get(), POLLIN, 0}, {listener_.socket.get(), POLLIN, 0}};
    MonotonicTime first = MonotonicTime::InfiniteFuture();
    for (const Connection& connection : connections) {
      waits.push_back(
          {connection.socket.get(), static_cast<short>(connection.answered ? POLLOUT : POLLIN), 0});
      first = std::min(first, connection.deadline);
    }
    const int ready = poll(waits.data(), waits.size(), connections.empty() ? -1 : PollTimeoutMs(first));
    if (ready < 0 && errno != EINTR) return;
    if (ready < 0) continue;
    if (waits[0].revents != 0) return;
    // Backwards, so that finished connections can be removed.
    for (size_t i = connections.size(); i-- > 0;) {
      const bool goes_on =
          MonotonicNow() < connections[i].deadline &&
          (waits[i + 2].revents == 0 || psring::Serve(connections[i], access_, answer_, rejections_));
      if (!goes_on) connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (waits[1].revents == 0) continue;
    FileDescriptor socket(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // Out of descriptors: closes all connections to get some back.
      if (errno == EMFILE || errno == ENFILE) {
        connections.clear();
        absl::SleepFor(absl::Milliseconds(50));
      }
      continue;
    }
    if (connections.size() == kMostConnections) connections.erase(connections.begin());
    connections.push_back({.socket = std::move(socket), .deadline = MonotonicNow() + patience_});
  }
}

}  // namespace psring
