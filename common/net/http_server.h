// A small HTTP/1.1 server for reading along: one thread that sleeps until somebody asks, one answer a
// connection. Why none of a library: it must end at once whatever its clients do, and stand in the trainer,
// where neither threads nor TLS may come along.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/net/http_message.h"
#include "common/net/tcp_socket.h"

namespace psring {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: the system chooses
};

class HttpServer {
 public:
  // A path to what is there. On the server's thread.
  using Answer = std::function<HttpReply(const std::string& path)>;

  // Unavailable, where it cannot listen: names the address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, Answer answer);
  // At once: who has not been answered is not.
  ~HttpServer();

  // "http://127.0.0.1:4242"
  std::string url() const;
  int port() const { return listener_.port; }

 private:
  HttpServer(const HttpServerOptions& options, Answer answer, TcpListener listener, FileDescriptor end);
  void Serve();

  const std::string host_;
  const Answer answer_;
  TcpListener listener_;
  FileDescriptor end_;  // an eventfd: readable once it is over
  std::thread thread_;
};

}  // namespace psring
