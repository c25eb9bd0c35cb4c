// The little of HTTP/1.1 that a page and a text of figures need. Pure.
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

// The bytes of `reply`, after which the connection ends. `head_only`: without its body, as HEAD wants it.
std::string HttpBytes(const HttpReply& reply, bool head_only);

inline constexpr size_t kLargestHttpRequest = 8192;

struct HttpAnswer {
  bool complete = false;  // else more of the request is to come
  std::string bytes;
};
// What a server says to `received`, all that has come so far: an error to what is no request, too long, or
// neither GET nor HEAD; else what `answer` says to its path, without a query ("/metrics").
// `this_host_only`: a request that names another host is refused, which keeps web pages of others, whose
// names lead here, from reading along (DNS rebinding).
HttpAnswer AnswerHttp(const std::string& received, bool this_host_only,
                      const std::function<HttpReply(const std::string& path)>& answer);

}  // namespace psring
