// Accepts connections and drives their handshakes (authentication.h).
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/authentication.h"

namespace psring {
namespace {

constexpr size_t kMaxPending = 256;
constexpr int kMaxAccepted = 64;  // at a time, so that members in their handshake are not delayed
constexpr absl::Duration kHandshakeTime = absl::Seconds(10);  // for one handshake

// Of PendingConnections::Pending::source. Users of IPv6 have many addresses, which share the first 8 bytes.
uint64_t SourceOf(int socket, const sockaddr_storage& address) {
  uint64_t source = 0;
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr;
  if (address.ss_family == AF_INET6) {
    const in6_addr& from = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&from);
    std::memcpy(&source, &from.s6_addr[is_mapped ? 8 : 0], sizeof source);
    return source;
  }
  ucred peer = {};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.uid : 0;
}

}  // namespace

PendingConnections::PendingConnections(const Credentials& credentials, OnOtherTls on_other_tls)
    : credentials_(credentials),
      on_other_tls_(std::move(on_other_tls)),
      rejected_{RejectionLog("that did not complete the handshake"), RejectionLog("without the job's secret"),
                RejectionLog("with --tls, which this process does not use", kSameTls),
                RejectionLog("without --tls, which this process uses", kSameTls),
                RejectionLog("with another CA or an invalid certificate", kSameTls)} {}

absl::StatusOr<std::vector<PendingConnections::Member>> PendingConnections::Wait(
    absl::Span<const int> listeners, MonotonicTime deadline) {
  std::vector<pollfd> waits;
  while (true) {
    waits.clear();
    for (const int listener : listeners) waits.push_back({listener, POLLIN, 0});
    MonotonicTime until = deadline;
    for (const Pending& pending : pending_) {
      waits.push_back({pending.handshake.socket(), pending.handshake.events(), 0});
      until = std::min(until, pending.until);
    }
    const int timeout_ms = until == MonotonicTime::InfiniteFuture() ? -1 : PollTimeoutMs(until);
    const int ready = poll(waits.data(), waits.size(), timeout_ms);
    if (ready < 0 && errno != EINTR) return SystemError("cannot wait for connections");
    const MonotonicTime now = MonotonicNow();
    std::vector<Member> members;
    size_t at = listeners.size();
    for (auto pending = pending_.begin(); pending != pending_.end(); ++at) {
      if (ready > 0 && waits[at].revents != 0) {
        pending = Advance(pending, members);
      } else if (now >= pending->until) {
        Reject(pending);
        pending = pending_.erase(pending);
      } else {
        ++pending;
      }
    }
    for (size_t i = 0; i < listeners.size() && ready > 0; ++i) {
      if (waits[i].revents == 0) continue;
      const bool is_shut_down = (waits[i].revents & POLLHUP) != 0;
      const absl::Status accepted =
          is_shut_down ? Cancelled("the listener was shut down") : Accept(listeners[i], i, members);
      if (!accepted.ok() && members.empty()) return accepted;
    }
    if (!members.empty() || now >= deadline) return members;
  }
}

PendingConnections::List::iterator PendingConnections::Advance(List::iterator pending,
                                                               std::vector<Member>& members) {
  ServerHandshake& handshake = pending->handshake;
  switch (handshake.Advance(credentials_, seen_)) {
    case ServerHandshake::State::kPending:
      return std::next(pending);
    case ServerHandshake::State::kAuthenticated:
      members.push_back({.socket = handshake.TakeSocket(),
                         .detail = handshake.detail(),
                         .listener = pending->listener,
                         .within_host = pending->within_host});
      break;
    case ServerHandshake::State::kReport:
      if (on_other_tls_ != nullptr) on_other_tls_(handshake.detail(), pending->peer);
      break;
    case ServerHandshake::State::kRejected:
      if (handshake.has_received()) Reject(pending);  // a health check closes at once
      break;
  }
  return pending_.erase(pending);
}

absl::Status PendingConnections::Accept(int listener, size_t index, std::vector<Member>& members) {
  for (int i = 0; i < kMaxAccepted; ++i) {
    sockaddr_storage address = {};
    socklen_t length = sizeof address;
    FileDescriptor socket(
        accept4(listener, reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid() && errno == ECONNABORTED) continue;  // the client has closed again
    const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (!socket.valid() && (!exhausted || (pending_.empty() && !members.empty()))) return absl::OkStatus();
    if (!socket.valid()) {
      if (pending_.empty()) return ResourceExhausted(SystemError("cannot accept a connection").message());
      const auto closed = Replaceable();
      Reject(closed);
      pending_.erase(closed);
      continue;
    }
    if (address.ss_family != AF_UNIX && !PrepareTcpSocket(socket.get()).ok()) continue;  // closed again
    const int fd = socket.get();
    pending_.push_back({.handshake = ServerHandshake(std::move(socket)),
                        .until = MonotonicNow() + kHandshakeTime,
                        .listener = index,
                        .peer = PeerOf(fd),
                        .source = SourceOf(fd, address),
                        .within_host = WithinHost(fd)});
    // A member's first message is often there already.
    Advance(std::prev(pending_.end()), members);
    if (pending_.size() <= kMaxPending) continue;
    const auto closed = Replaceable();
    Reject(closed, absl::StrCat(", when ", kMaxPending, " were in their handshake"));
    pending_.erase(closed);
  }
  return absl::OkStatus();
}

PendingConnections::List::iterator PendingConnections::Replaceable() {
  std::map<uint64_t, size_t> silent;  // connections, by source
  size_t most = 0;
  for (const Pending& pending : pending_) {
    if (!pending.handshake.is_proven()) most = std::max(most, ++silent[pending.source]);
  }
  const auto oldest = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    return !pending.handshake.is_proven() && silent[pending.source] == most;
  });
  return oldest == pending_.end() ? pending_.begin() : oldest;
}

void PendingConnections::Reject(List::iterator pending, const std::string& circumstance) {
  rejected_[static_cast<size_t>(pending->handshake.reason())].Add(pending->peer + circumstance);
}

AuthenticatedListener::AuthenticatedListener(TcpListener listener, const Credentials& credentials,
                                             OnMember on_member, PendingConnections::OnOtherTls on_other_tls)
    : listener_(std::move(listener)),
      pending_(credentials, std::move(on_other_tls)),
      on_member_(std::move(on_member)) {
  thread_ = std::thread([this] { Serve(); });
}

absl::StatusOr<std::unique_ptr<AuthenticatedListener>> AuthenticatedListener::Start(
    TcpListener listener, const Credentials& credentials, OnMember on_member,
    PendingConnections::OnOtherTls on_other_tls) {
  PSRING_RETURN_IF_ERROR(CheckCredentials(credentials));
  const int flags = fcntl(listener.socket.get(), F_GETFL);
  if (flags < 0 || fcntl(listener.socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return SystemError("cannot listen");
  }
  return std::unique_ptr<AuthenticatedListener>(new AuthenticatedListener(
      std::move(listener), credentials, std::move(on_member), std::move(on_other_tls)));
}

AuthenticatedListener::~AuthenticatedListener() {
  shutdown(listener_.socket.get(), SHUT_RDWR);  // ends Wait
  thread_.join();
}

void AuthenticatedListener::Serve() {
  const int socket = listener_.socket.get();
  while (true) {
    auto members = pending_.Wait({socket}, MonotonicTime::InfiniteFuture());
    if (absl::IsCancelled(members.status())) return;
    if (!members.ok()) {
      absl::SleepFor(absl::Milliseconds(50));  // perhaps others close descriptors
      continue;
    }
    for (PendingConnections::Member& member : *members) on_member_(std::move(member));
  }
}

}  // namespace psring
