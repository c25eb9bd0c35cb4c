// The part of HTTP/1.1 that serving a page and metrics needs. Pure.
#include <openssl/crypto.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
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

struct HttpField {
  std::string name;  // in lower case
  absl::string_view value;
};

HttpAnswer Refuse(int code, const std::string& why, bool head_only = false) {
  const bool rejected = code == 403;
  return {true, HttpBytes({.code = code, .body = absl::StrCat(why, "\n")}, head_only), rejected};
}

// "127.0.0.1:80", "localhost", "[::1]:80" without the port; empty if it is malformed.
std::string HostOf(absl::string_view field) {
  absl::string_view rest = absl::StripAsciiWhitespace(field), host;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t end = rest.find(']');
    if (end == absl::string_view::npos) return "";
    host = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  } else {
    host = rest.substr(0, rest.find(':'));
    rest.remove_prefix(host.size());
  }
  uint32_t port = 0;
  if (!rest.empty() && !(absl::ConsumePrefix(&rest, ":") && absl::SimpleAtoi(rest, &port))) return "";
  return absl::AsciiStrToLower(host);
}

bool IsToken(absl::string_view given, const std::string& token) {
  return given.size() == token.size() && CRYPTO_memcmp(given.data(), token.data(), token.size()) == 0;
}

// Whether the target's query or a header field contains `token`.
bool HasToken(absl::string_view target, const std::vector<HttpField>& fields, const std::string& token) {
  if (token.empty()) return true;
  const std::pair<absl::string_view, absl::string_view> query =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  for (absl::string_view parameter : absl::StrSplit(query.second, '&')) {
    if (absl::ConsumePrefix(&parameter, "token=") && IsToken(parameter, token)) return true;
  }
  for (const HttpField& field : fields) {
    absl::string_view value = absl::StripAsciiWhitespace(field.value);
    if (field.name == "authorization" && absl::ConsumePrefix(&value, "Bearer ") && IsToken(value, token)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string HttpBytes(const HttpReply& reply, bool head_only) {
  return absl::StrCat(
      "HTTP/1.1 ", reply.code, " ", ReasonOf(reply.code), "\r\nContent-Type: ", reply.type,
      "\r\nContent-Length: ", reply.body.size(),
      "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
      reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", "\r\n", head_only ? "" : reply.body);
}

HttpAnswer AnswerHttp(const std::string& received, const HttpAccess& access,
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
  std::vector<HttpField> fields;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(lines[i], absl::MaxSplits(':', 1));
    fields.push_back({absl::AsciiStrToLower(field.first), field.second});
  }
  for (const HttpField& field : fields) {
    if (access.this_host_only && field.name == "host" && !IsLoopback(HostOf(field.value))) {
      return Refuse(403, "this server answers only requests for localhost", head_only);
    }
  }
  if (!HasToken(words[1], fields, access.token)) {
    return Refuse(403, "this server answers only requests with its token; use the URL that psring printed",
                  head_only);
  }
  return {true, HttpBytes(answer(std::string(words[1].substr(0, words[1].find('?')))), head_only)};
}

}  // namespace psring
