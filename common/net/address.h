// Hosts and ports, and what is wrong with them in words that help.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

// "host:port"; "[::1]:port" for an IPv6 address.
std::string AddressText(const std::string& host, int port);

struct HostPort {
  std::string host;
  int port = 0;
};
// Of what AddressText writes. InvalidArgument where it is none.
absl::StatusOr<HostPort> ParseAddress(const std::string& text);

// By its name alone: "localhost", 127.x.x.x, ::1.
bool IsLoopback(const std::string& host);

// Empty where the system can make an address of `host`, else its reason.
std::string WhyUnresolved(const std::string& host);

// For servers of libraries that do not tell why they could not listen. AlreadyExists: the port is in use, by
// another program or another run; InvalidArgument: no such host; Unavailable: not an address of this machine,
// or not allowed. `remedy` ends the first: "choose another MASTER_PORT". Port 0 is always free.
absl::Status CheckThatPortIsFree(const std::string& host, int port, const std::string& remedy);

}  // namespace psring
