#include "common/rendezvous/own_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/file_descriptor.h"
#include "common/net/host_identity.h"
#include "common/net/tcp_socket.h"
#include "common/rendezvous/roster.h"

namespace psring {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr absl::Duration kBetweenResolutions = absl::Milliseconds(200);
constexpr char kAsk[] = "; choose one: --interface NAME or --bind ADDRESS";

// Addresses of interfaces that are up; IPv4 first. Excludes link-local IPv6 addresses, which are not valid on
// other machines.
std::vector<std::pair<std::string, std::string>> InterfacesAndAddresses() {
  std::vector<std::pair<std::string, std::string>> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      found.emplace_back(entry->ifa_name, HostOf(entry->ifa_addr));
    }
  }
  freeifaddrs(list);
  return found;
}

absl::StatusOr<std::string> AddressOfInterface(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [interface, address] : InterfacesAndAddresses()) {
    if (interface == name) return address;
    const std::string shown = absl::StrCat(interface, " (", address, ")");
    if (std::find(names.begin(), names.end(), shown) == names.end()) names.push_back(shown);
  }
  return InvalidArgument("--interface ", name, ": there is no such interface with an address here; there ",
                         names.size() == 1 ? "is " : "are ", absl::StrJoin(names, ", "));
}

// The only address of this machine that others can reach: the only one of IPv4, or of IPv6 if there is none.
absl::StatusOr<std::string> OnlyAddress() {
  std::vector<std::string> addresses;
  bool has_ipv4 = false;
  for (const auto& [interface, address] : InterfacesAndAddresses()) {
    const bool ipv4 = !absl::StrContains(address, ':');
    if (IsLoopback(address) || (has_ipv4 && !ipv4)) continue;  // IPv4's come first
    has_ipv4 |= ipv4;
    addresses.push_back(address);
  }
  if (addresses.size() == 1) return addresses.front();
  return InvalidArgument(
      addresses.empty() ? "this machine has only a loopback network"
                        : absl::StrCat("this machine has the addresses ", absl::StrJoin(addresses, ", ")),
      kAsk);
}

// The source address of packets to `host`; nothing is sent. Empty: no route.
std::string SourceOfRoute(const AddressList& host) {
  for (const addrinfo* to = host.get(); to != nullptr; to = to->ai_next) {
    const FileDescriptor fd(socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t length = sizeof own;
    if (!fd.valid() || connect(fd.get(), to->ai_addr, to->ai_addrlen) != 0) continue;
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    return HostOf(reinterpret_cast<const sockaddr*>(&own));
  }
  return "";
}

bool IsOwnName(const std::string& host) {
  const auto label = [](const std::string& of) { return of.substr(0, of.find('.')); };
  return label(HostName()) == label(host);
}

absl::Status CheckOwn(const std::string& address) {
  const absl::Status listens = ListenTcp(address).status();
  if (listens.ok()) return absl::OkStatus();
  return InvalidArgument("--bind ", address, ": ", listens.message(),
                         "; it must be an address of this machine");
}

}  // namespace

absl::StatusOr<AddressList> AwaitHost(const std::string& host, absl::Duration timeout) {
  constexpr int kAnyPort = 9;  // UDP needs one to find a route
  for (const MonotonicTime deadline = MonotonicNow() + timeout;; absl::SleepFor(kBetweenResolutions)) {
    absl::StatusOr<AddressList> resolved = ResolveHost(host, kAnyPort);
    if (resolved.ok()) return resolved;
    if (MonotonicNow() + kBetweenResolutions >= deadline) {
      return DeadlineExceeded(
          "waited ", SecondsText(timeout), " for an address of ", resolved.status().message(),
          "; check its name (MASTER_ADDR, --master_addr or --rendezvous) and the name service");
    }
  }
}

absl::StatusOr<std::string> OwnAddress(const NetworkChoice& choice, const RendezvousOptions& meeting) {
  if (!choice.bind.empty() && !choice.interface.empty()) {
    return InvalidArgument("--bind and --interface both choose a network; give one");
  }
  if (!choice.interface.empty()) return AddressOfInterface(choice.interface);
  if (!choice.bind.empty()) {
    const std::string bind = WithoutBrackets(choice.bind);
    PSRING_RETURN_IF_ERROR(CheckOwn(bind));
    return bind;
  }
  if (meeting.on_one_host() || meeting.world_size == 1) return std::string(kLoopback);
  if (!meeting.file.empty()) {
    if (meeting.local_world_size == 0) return std::string(kLoopback);  // the launcher knows no other hosts
    return OnlyAddress();
  }
  if (IsLoopback(meeting.host)) return std::string(kLoopback);
  PSRING_ASSIGN_OR_RETURN(const AddressList host, AwaitHost(meeting.host, meeting.timeout));
  const std::string source = SourceOfRoute(host);
  if (!source.empty() && !IsLoopback(source)) return source;
  return OnlyAddress();
}

absl::StatusOr<std::string> StoreAddress(const std::string& bind, const std::string& host) {
  if (IsLoopback(host)) return host;
  PSRING_ASSIGN_OR_RETURN(const AddressList resolved, ResolveHost(host, /*port=*/0));
  bool loopback = false;
  for (const addrinfo* address = resolved.get(); address != nullptr; address = address->ai_next) {
    const std::string text = HostOf(address->ai_addr);
    loopback = loopback || IsLoopback(text);
    if (!IsLoopback(text) && ListenTcp(text).ok()) return text;
  }
  if (!bind.empty()) return bind;
  if (loopback) return OnlyAddress();
  return InvalidArgument("cannot listen at ", host,
                         ", which is not an address of this machine; start rank 0 there, or "
                         "give --bind ADDRESS if others reach this machine by another name");
}

absl::StatusOr<std::string> AddressToDial(const std::string& bind, const std::string& host) {
  if (IsLoopback(host) || !IsOwnName(host)) return host;
  const absl::StatusOr<AddressList> resolved = ResolveHost(host, /*port=*/0);
  if (!resolved.ok()) return host;
  for (const addrinfo* address = resolved->get(); address != nullptr; address = address->ai_next) {
    if (!IsLoopback(HostOf(address->ai_addr))) return host;
  }
  return StoreAddress(bind, host);
}

}  // namespace psring
