// A small HTTP/1.1 server for monitoring: one thread that sleeps until a request comes, one reply per
// connection. A library is not used because the server must stop at once whatever its clients do, and run in
// the trainer without more threads or TLS.
//
// The protocol, which is pure, is in http_message.cc; the sockets are in http_server.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"
#include "common/net/rejection_log.h"
#include "common/net/tcp_socket.h"

namespace psring {

struct HttpReply {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// The bytes of `reply`, after which the connection is closed. `head_only`: without its body, for HEAD.
std::string HttpBytes(const HttpReply& reply, bool head_only);

inline constexpr size_t kLargestHttpRequest = 8192;

struct HttpAnswer {
  bool complete = false;  // otherwise more of the request must be received
  std::string bytes;
  bool rejected = false;  // because of HttpAccess
};
// Which requests a server answers.
struct HttpAccess {
  // Those that name this host, so that other sites' pages whose names resolve to this host cannot read the
  // data (DNS rebinding).
  bool this_host_only = false;
  // Those with this token: "?token=TOKEN" or "Authorization: Bearer TOKEN". Empty: no token is needed.
  std::string token;
};
// The server's reply to `received`, everything received so far: an error if it is malformed, too long, not
// allowed, or neither GET nor HEAD; else the result of `answer` for its path without the query ("/metrics").
HttpAnswer AnswerHttp(const std::string& received, const HttpAccess& access,
                      const std::function<HttpReply(const std::string& path)>& answer);

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: the system chooses
  // Requests must contain it unless `host` is a loopback address; others are counted on stderr. Empty: a
  // random one.
  std::string token = {};
  // From a connection's begin to its end: a client that sends or reads more slowly is disconnected.
  absl::Duration patience = absl::Seconds(5);
};

class HttpServer {
 public:
  // The reply to a path. Called on the server's thread.
  using Answer = std::function<HttpReply(const std::string& path)>;

  // Unavailable if it cannot listen: names the address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, Answer answer);
  // Stops at once; pending requests are not answered.
  ~HttpServer();

  // "http://127.0.0.1:4242" and `path`, with the token if one is needed. The loopback stands for all
  // addresses
  // ("0.0.0.0", "::"), which is where a user of this machine, `docker -p` or `ssh -L` finds the server.
  std::string url(const std::string& path = "") const;
  int port() const { return listener_.port; }

 private:
  HttpServer(const HttpServerOptions& options, Answer answer, TcpListener listener, FileDescriptor end);
  void Serve();

  const std::string host_;
  const absl::Duration patience_;
  const HttpAccess access_;
  const Answer answer_;
  TcpListener listener_;
  RejectionLog rejections_;
  FileDescriptor end_;  // an eventfd: readable once the server must stop
  std::thread thread_;
};

}  // namespace psring
