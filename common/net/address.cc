#include "common/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/base/errors.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr size_t kMaxTokenBytes = 64;

}  // namespace

std::string AddressText(const std::string& host, int port) {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string PublishedText(const HostPort& address) {
  return absl::StrCat(AddressText(address.host, address.port), address.token.empty() ? "" : "/",
                      address.token);
}

std::string WithoutBrackets(const std::string& host) {
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return brackets ? host.substr(1, host.size() - 2) : host;
}

absl::StatusOr<HostPort> ParseAddress(const std::string& text) {
  const std::string where = WithoutToken(text);
  HostPort address{.token = where.size() < text.size() ? text.substr(where.size() + 1) : ""};
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos || colon == 0 || address.token.size() > kMaxTokenBytes ||
      !absl::SimpleAtoi(where.substr(colon + 1), &address.port) || address.port < 0 || address.port > 65535) {
    return InvalidArgument("\"", PeerText(where), "\" is not host:port");
  }
  address.host = WithoutBrackets(where.substr(0, colon));
  return address;
}

std::string WithoutToken(const std::string& text) { return text.substr(0, text.find('/')); }

std::string HostOf(const sockaddr* address) {
  char host[INET6_ADDRSTRLEN] = {};
  const auto& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  const auto& four = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &four, host, sizeof host);
  } else if (address->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six)) {
    inet_ntop(AF_INET, &six.s6_addr[12], host, sizeof host);
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &six, host, sizeof host);
  }
  return host;
}

int PortOf(const sockaddr* address) {
  return ntohs(address->sa_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                                              : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

bool IsLoopback(const std::string& host) {
  in_addr address{};
  return host == "localhost" || host == "::1" ||
         (::inet_pton(AF_INET, host.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

absl::StatusOr<AddressList> ResolveHost(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error == 0) return AddressList(found, ::freeaddrinfo);
  return InvalidArgument("host '", host, "': ", ::gai_strerror(error));
}

}  // namespace psring
