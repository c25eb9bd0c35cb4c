// The part of HTTP/1.1 that serving a page and metrics needs. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

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
};
// The server's reply to `received`, everything received so far: an error if it is malformed, too long, or
// neither GET nor HEAD; else the result of `answer` for its path without the query ("/metrics").
// `this_host_only`: rejects requests that name another host, so that other sites' pages whose names resolve
// to this host cannot read the data (DNS rebinding).
HttpAnswer AnswerHttp(const std::string& received, bool this_host_only,
                      const std::function<HttpReply(const std::string& path)>& answer);

}  // namespace psring
