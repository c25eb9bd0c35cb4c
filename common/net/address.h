// Parses and resolves hosts and ports.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace psring {

// "host:port"; "[::1]:port" for an IPv6 address.
std::string AddressText(const std::string& host, int port);

// "fd00::1" of "[fd00::1]", as in a URL; other hosts stay as they are.
std::string WithoutBrackets(const std::string& host);

struct HostPort {
  std::string host;
  int port = 0;
  std::string token = {};  // of the listener (authentication.h); empty: it has none
};
// "host:port/token", as listeners publish it.
std::string PublishedText(const HostPort& address);
// Parses the output of AddressText and PublishedText. InvalidArgument if malformed.
absl::StatusOr<HostPort> ParseAddress(const std::string& text);
// "host:port" of either, for messages.
std::string WithoutToken(const std::string& text);

// The numeric address of a socket, that of IPv4 in IPv6 as IPv4's; empty if it is of another family.
std::string HostOf(const sockaddr* address);
int PortOf(const sockaddr* address);

// "localhost", an address 127.x.x.x, or ::1. Other names are not resolved.
bool IsLoopback(const std::string& host);

// "0.0.0.0" or "::": all addresses of this machine, to listen on.
bool IsWildcard(const std::string& host);

// The addresses of `host` for TCP, from getaddrinfo; not empty. InvalidArgument: "host 'x': Name or service
// not known".
using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
absl::StatusOr<AddressList> ResolveHost(const std::string& host, int port);

}  // namespace psring
