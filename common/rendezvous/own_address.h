// Which of this machine's addresses a process listens on, and tells others to reach it by. Nothing listens on
// all networks at once unless it is asked to.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// --bind and --interface; at most one is given.
struct NetworkChoice {
  std::string bind;       // an address of this machine
  std::string interface;  // "eth0": its first address, IPv4's before IPv6's
};

// The address that `choice` names. Where it names none: the loopback's where all ranks are on this host, else
// the one from which this machine reaches the store. InvalidArgument: no such interface (lists those there
// are), not an address of ours, or none can be told without being asked for.
absl::StatusOr<std::string> OwnAddress(const NetworkChoice& choice, const RendezvousOptions& meeting);

// Where a store listens that others find at `host`: on the address of ours that `host` stands for; where it
// stands for none (another machine hands on what comes there), or for our loopback (as Debian's /etc/hosts
// has a machine's own name), on `bind`, or, in the second case, on the only other address that there is.
// InvalidArgument: none of that is the case.
absl::StatusOr<std::string> StoreAddress(const std::string& bind, const std::string& host);

}  // namespace psring
