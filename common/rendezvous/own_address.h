// The address of this machine on which a process listens and at which others reach it. Nothing listens on all
// networks unless requested.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/address.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// --bind and --interface; at most one is set.
struct NetworkChoice {
  std::string bind;       // an address of this machine; IPv6's may have brackets
  std::string interface;  // "eth0": its first address, IPv4's before IPv6's
};

// Resolves `host` again and again, at most for `timeout`: a pod may start before its name is known.
// DeadlineExceeded names the host and the system's reason.
absl::StatusOr<AddressList> AwaitHost(const std::string& host, absl::Duration timeout);

// The address that `choice` names. If it names none: the loopback address if all ranks are on this host, else
// the address from which this machine reaches the store, whose host is awaited for the timeout of `meeting`.
// InvalidArgument: no such interface (lists the existing ones), not an address of this machine, or the
// address cannot be determined. DeadlineExceeded: AwaitHost's.
absl::StatusOr<std::string> OwnAddress(const NetworkChoice& choice, const RendezvousOptions& meeting);

// The address on which a store listens that others find at `host`: the address of this machine to which
// `host` resolves. If it resolves to none (another machine forwards the connections) or to loopback (Debian's
// /etc/hosts does so for the machine's own name): `bind`, or, for loopback, the only other address.
// InvalidArgument if none of these applies.
absl::StatusOr<std::string> StoreAddress(const std::string& bind, const std::string& host);

// Where the processes that do not host the store find it: at `host`, unless this is the machine's own name
// and resolves only to loopback; then StoreAddress, because the store is on this machine and does not listen
// there.
absl::StatusOr<std::string> AddressToDial(const std::string& bind, const std::string& host);

}  // namespace psring
