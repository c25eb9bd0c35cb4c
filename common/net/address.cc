#include "common/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr size_t kMaxTokenBytes = 64;

int TryToListen(const addrinfo& address) {  // 0 or errno
  const int listener = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return errno;
  const int yes = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));  // as gRPC does
  const bool listens =
      ::bind(listener, address.ai_addr, address.ai_addrlen) == 0 && ::listen(listener, 1) == 0;
  const int error = listens ? 0 : errno;
  ::close(listener);
  return error;
}

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
    return absl::InvalidArgumentError(absl::StrCat("\"", PeerText(where), "\" is not host:port"));
  }
  address.host = WithoutBrackets(where.substr(0, colon));
  return address;
}

std::string WithoutToken(const std::string& text) { return text.substr(0, text.find('/')); }

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
  return absl::InvalidArgumentError(absl::StrCat("host '", host, "': ", ::gai_strerror(error)));
}

absl::Status CheckThatPortIsFree(const std::string& host, int port, const std::string& remedy) {
  PSRING_ASSIGN_OR_RETURN(const AddressList addresses, ResolveHost(host, port));
  int last_error = 0;
  bool listened = false;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int error = TryToListen(*address);
    if (error == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat("port ", port, " on ", host, " is in use; ", remedy));
    }
    listened = listened || error == 0;
    last_error = error;
  }
  if (listened) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", AddressText(host, port), ": ", std::strerror(last_error)));
}

}  // namespace psring
