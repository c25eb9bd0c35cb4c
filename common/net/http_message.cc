// The part of HTTP/1.1 that serving a page and metrics needs. Pure.
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/address.h"
#include "common/net/http_server.h"

namespace psring {
namespace {

const char* ReasonOf(int code) {
  constexpr std::pair<int, const char*> kReasons[] = {{200, "OK"},
                                                      {400, "Bad Request"},
                                                      {403, "Forbidden"},
                                                      {404, "Not Found"},
                                                      {405, "Method Not Allowed"},
                                                      {431, "Request Header Fields Too Large"},
                                                      {505, "HTTP Version Not Supported"}};
  for (const auto& [known, reason] : kReasons) {
    if (known == code) return reason;
  }
  return "Error";
}

HttpAnswer Refuse(int code, const std::string& why, bool head_only = false) {
  return {true, HttpBytes({.code = code, .body = absl::StrCat(why, "\n")}, head_only)};
}

// "127.0.0.1:80", "localhost", "[::1]:80" without the port.
std::string HostOf(absl::string_view field) {
  absl::string_view host = absl::StripAsciiWhitespace(field);
  if (!host.empty() && host.front() == '[') return std::string(host.substr(1, host.find(']') - 1));
  return absl::AsciiStrToLower(
      host.substr(0, host.rfind(':') == absl::string_view::npos ? host.size() : host.rfind(':')));
}

}  // namespace

std::string HttpBytes(const HttpReply& reply, bool head_only) {
  return absl::StrCat(
      "HTTP/1.1 ", reply.code, " ", ReasonOf(reply.code), "\r\nContent-Type: ", reply.type,
      "\r\nContent-Length: ", reply.body.size(),
      "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
      reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", "\r\n", head_only ? "" : reply.body);
}

HttpAnswer AnswerHttp(const std::string& received, bool this_host_only,
                      const std::function<HttpReply(const std::string& path)>& answer) {
  const size_t end = received.find("\r\n\r\n");
  if (end == std::string::npos) {
    if (received.size() >= kLargestHttpRequest) return Refuse(431, "this request is too long");
    return {};
  }
  if (end > kLargestHttpRequest) return Refuse(431, "this request is too long");
  const std::vector<absl::string_view> lines =
      absl::StrSplit(absl::string_view(received).substr(0, end), "\r\n");
  const std::vector<absl::string_view> words = absl::StrSplit(lines.front(), ' ');
  if (words.size() != 3 || words[1].empty() || words[1].front() != '/' || words[2].substr(0, 5) != "HTTP/") {
    return Refuse(400, "this is not an HTTP request");
  }
  if (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0") return Refuse(505, "this server speaks HTTP/1.1");
  const bool head_only = words[0] == "HEAD";
  if (words[0] != "GET" && !head_only) return Refuse(405, "this server only answers GET and HEAD");
  if (this_host_only) {
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::pair<absl::string_view, absl::string_view> field =
          absl::StrSplit(lines[i], absl::MaxSplits(':', 1));
      if (absl::AsciiStrToLower(field.first) == "host" && !IsLoopback(HostOf(field.second))) {
        return Refuse(403, "this server answers only requests for localhost", head_only);
      }
    }
  }
  return {true, HttpBytes(answer(std::string(words[1].substr(0, words[1].find('?')))), head_only)};
}

}  // namespace psring
