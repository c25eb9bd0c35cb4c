// Requests to the HTTP servers for metrics and the live page.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/net/http_server.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string request = psring::TextOf(data + 1, size - 1);
  const bool has_token = data[0] % 2 == 1;
  const psring::HttpAccess access = {.this_host_only = !has_token, .token = has_token ? "0123abcd" : ""};
  bool is_answered = false;
  const auto answer = [&](const std::string& path) {
    if (path.empty() || path[0] != '/' || path.find_first_of("? ") != std::string::npos) __builtin_trap();
    is_answered = true;
    return psring::HttpReply{.body = "page"};
  };
  const psring::HttpAnswer reply = psring::AnswerHttp(request, access, answer);
  if (reply.complete == reply.bytes.empty()) __builtin_trap();
  if (!reply.complete && request.size() >= psring::kLargestHttpRequest) __builtin_trap();
  if (reply.complete && reply.bytes.substr(0, 9) != "HTTP/1.1 ") __builtin_trap();
  if (is_answered && has_token && request.find("0123abcd") == std::string::npos) __builtin_trap();
  const size_t other_host = request.find("\r\nHost: evil.example\r\n");
  const bool names_another = other_host != std::string::npos && other_host < request.find("\r\n\r\n");
  if (is_answered && !has_token && names_another) __builtin_trap();
  return 0;
}
