#include "common/net/rejection_log.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"

namespace psring {
namespace {

constexpr absl::Duration kReportEvery = absl::Seconds(10);

}  // namespace

std::string PeerOf(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "an unknown address";
  if (address.ss_family == AF_UNIX) {
    ucred peer = {};
    socklen_t size = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "a process of this host";
    return absl::StrCat("process ", peer.pid, " of this host");
  }
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  if (getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

void RejectionLog::Add(std::string peer) {
  ++count_;
  last_ = std::move(peer);
  if (MonotonicNow() >= next_report_) Report();
}

void RejectionLog::Report() {
  if (count_ == 0) return;
  std::fprintf(stderr, "psring: rejected %lld %s%s %s, last from %s%s%s\n", static_cast<long long>(count_),
               noun_.c_str(), count_ == 1 ? "" : "s", reason_.c_str(), last_.c_str(),
               remedy_.empty() ? "" : "; ", remedy_.c_str());
  count_ = 0;
  next_report_ = MonotonicNow() + kReportEvery;
}

}  // namespace psring
