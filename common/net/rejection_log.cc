#include "common/net/rejection_log.h"

#include <sys/socket.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/net/address.h"

namespace psring {
namespace {

constexpr absl::Duration kReportEvery = absl::Seconds(10);

std::string TextOf(const sockaddr_storage& address) {
  const auto* of = reinterpret_cast<const sockaddr*>(&address);
  return AddressText(HostOf(of), PortOf(of));
}

}  // namespace

std::string PeerOf(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "an unknown address";
  if (address.ss_family != AF_UNIX) return TextOf(address);
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "a process of this host";
  return absl::StrCat("process ", peer.pid, " of this host");
}

std::string OwnAddressOf(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  const int failed = getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return failed != 0 ? "an unknown address" : TextOf(address);
}

void RejectionLog::Add(std::string peer) {
  ++count_;
  last_ = std::move(peer);
  if (MonotonicNow() >= next_report_) Report();
}

void RejectionLog::Report() {
  if (count_ == 0) return;
  std::fprintf(stderr, "psring: rejected %lld connection%s %s, last from %s%s%s\n",
               static_cast<long long>(count_), count_ == 1 ? "" : "s", reason_.c_str(), last_.c_str(),
               remedy_.empty() ? "" : "; ", remedy_.c_str());
  count_ = 0;
  next_report_ = MonotonicNow() + kReportEvery;
}

}  // namespace psring
