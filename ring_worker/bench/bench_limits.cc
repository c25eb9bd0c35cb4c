#include "ring_worker/bench/bench_limits.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/kernels/reduce.h"
#include "common/measure/collective_table.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "common/rendezvous/rendezvous_store.h"

namespace psring {
namespace {

// Bytes that are added and written while still in the L1 cache.
constexpr size_t kBlock = 8 << 10;
// Most bytes of one send or receive call.
constexpr size_t kWindow = 1 << 20;
// A rank tries this often before it sleeps: about the cost of a wake-up.
constexpr int kLooks = 200;

absl::Status SocketError(const char* call) { return Unavailable("limits: ", call, ": ", strerror(errno)); }

}  // namespace

const char* Name(LimitKind kind) {
  constexpr const char* kNames[] = {"copy", "shared", "tcp", "unix"};
  return kNames[static_cast<size_t>(kind)];
}

// Every rank listens, publishes its address, connects to the next rank and accepts the previous one.
absl::StatusOr<HostLimits::Links> HostLimits::Connect(Rendezvous& rendezvous, int family,
                                                      absl::Duration timeout) {
  const auto rank = static_cast<size_t>(rendezvous.options().rank);
  const MonotonicTime deadline = MonotonicNow() + timeout;
  const int type = SOCK_STREAM | SOCK_CLOEXEC;
  const FileDescriptor listener(socket(family, type | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return SocketError("socket");
  // Of a Unix socket, the kernel chooses a name in the abstract namespace: no file is left over.
  sockaddr_storage address{};
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  address.ss_family = static_cast<sa_family_t>(family);
  reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = family == AF_INET ? htonl(INADDR_LOOPBACK) : 0;
  socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sa_family_t);
  if (bind(listener.get(), any, length) != 0) return SocketError("bind");
  if (listen(listener.get(), SOMAXCONN) != 0) return SocketError("listen");
  length = sizeof address;
  if (getsockname(listener.get(), any, &length) != 0) return SocketError("getsockname");
  Credentials credentials = {
      .secret = rendezvous.options().secret, .purpose = Purpose::kLinkLimits, .token = NewListenerToken()};
  PendingConnections pending(credentials);
  const size_t token_bytes = credentials.token.size();
  const absl::string_view place(reinterpret_cast<const char*>(&address), length);
  PSRING_ASSIGN_OR_RETURN(
      const std::vector<std::string> cards,
      rendezvous.Exchange(absl::StrCat("limits ", family), absl::StrCat(credentials.token, place)));
  const std::string& card = cards[(rank + 1) % cards.size()];
  if (card.size() < token_bytes || card.size() > token_bytes + sizeof address) {
    return absl::InternalError("limits: the next rank published an invalid address");
  }
  credentials.token = card.substr(0, token_bytes);
  length =
      static_cast<socklen_t>(card.copy(reinterpret_cast<char*>(&address), std::string::npos, token_bytes));

  FileDescriptor to(socket(family, type, 0));
  if (!to.valid()) return SocketError("socket");
  if (connect(to.get(), any, length) != 0) return SocketError("connect");
  if (family == AF_INET) PSRING_RETURN_IF_ERROR(PrepareTcpSocket(to.get()));
  if (fcntl(to.get(), F_SETFL, fcntl(to.get(), F_GETFL) | O_NONBLOCK) != 0) return SocketError("fcntl");
  // At the same time, since every rank waits for the next one.
  absl::StatusOr<std::vector<PendingConnections::Member>> accepted;
  std::thread accepting([&] { accepted = pending.Wait({listener.get()}, deadline); });
  if (family != AF_INET) credentials.secret = credentials.secret.WithTls(nullptr);
  absl::StatusOr<MemberSocket> authenticated =
      AuthenticateTcp(std::move(to), credentials, "limits: the next rank", deadline);
  accepting.join();
  Links links;
  PSRING_ASSIGN_OR_RETURN(links.next, std::move(authenticated));
  PSRING_RETURN_IF_ERROR(accepted.status());
  if (accepted->empty()) return absl::DeadlineExceededError("limits: the previous rank did not connect");
  links.before = std::move(accepted->front().socket);
  links.before.ReadAhead();
  return links;
}

absl::StatusOr<std::unique_ptr<HostLimits>> HostLimits::Make(Rendezvous& rendezvous, HostBarrier& barrier,
                                                             const Buffer& copy_from, const Buffer& copy_to,
                                                             const Buffer& shared, absl::Duration timeout) {
  std::unique_ptr<HostLimits> limits(new HostLimits(rendezvous, barrier, timeout));
  limits->copy_from_ = copy_from.data();
  limits->copy_to_ = copy_to.data();
  PSRING_ASSIGN_OR_RETURN(limits->shared_, SharedBuffers::Map(rendezvous, "limits", shared));
  PSRING_ASSIGN_OR_RETURN(limits->tcp_, Connect(rendezvous, AF_INET, timeout));
  PSRING_ASSIGN_OR_RETURN(limits->unix_, Connect(rendezvous, AF_UNIX, timeout));
  return limits;
}

absl::Status HostLimits::Run(LimitKind kind, Collective collective, size_t bytes) {
  switch (kind) {
    case LimitKind::kCopy:
      memcpy(copy_to_, copy_from_, bytes);
      return absl::OkStatus();
    case LimitKind::kShared:
      return RunShared(collective, bytes);
    case LimitKind::kTcp:
      return RunLinks(tcp_, collective, bytes);
    case LimitKind::kUnix:
      return RunLinks(unix_, collective, bytes);
  }
  return absl::OkStatus();
}

absl::Status HostLimits::RunShared(Collective collective, size_t bytes) {
  PSRING_RETURN_IF_ERROR(barrier_.Wait());
  const size_t elements = bytes / sizeof(float);
  const ChunkRange part = ChunkBounds(elements, ranks_, rank_);
  const auto at = [&](int rank, size_t element) { return shared_.of(rank) + element * sizeof(float); };
  std::byte* const mine = shared_.of(rank_);
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter: {
      const bool to_all = collective == Collective::kAllReduce;
      std::vector<const void*> sources(static_cast<size_t>(ranks_));
      for (size_t done = 0; done < part.length; done += kBlock / sizeof(float)) {
        const size_t first = part.first + done;
        const size_t count = std::min(kBlock / sizeof(float), part.length - done);
        for (int rank = 0; rank < ranks_; ++rank) sources[rank] = at(rank, first);
        cpu::Reduce(ReduceOp::kSum, DType::kFloat32, count, at(rank_, first), sources.data(), ranks_);
        for (int rank = 0; to_all && rank < ranks_; ++rank) {
          if (rank != rank_) memcpy(at(rank, first), at(rank_, first), count * sizeof(float));
        }
      }
      break;
    }
    case Collective::kAllGather:
      for (int step = 1; step < ranks_; ++step) {
        const int from = (rank_ + step) % ranks_;
        const ChunkRange theirs = ChunkBounds(elements, ranks_, from);
        memcpy(mine + theirs.first * sizeof(float), at(from, theirs.first), theirs.length * sizeof(float));
      }
      break;
    case Collective::kBroadcast:
      if (rank_ != 0) memcpy(mine, shared_.of(0), bytes);
      break;
    case Collective::kAllToAll:
      for (int step = 0; step < ranks_; ++step) {
        const int from = (rank_ + step) % ranks_;
        memcpy(static_cast<std::byte*>(copy_to_) + ChunkBounds(elements, ranks_, from).first * sizeof(float),
               at(from, part.first), part.length * sizeof(float));
      }
      break;
  }
  return barrier_.Wait();
}

absl::Status HostLimits::RunLinks(Links& links, Collective collective, size_t buffer_bytes) {
  const auto bytes =
      static_cast<size_t>(BusFactor(Name(collective), ranks_) * static_cast<double>(buffer_bytes));
  // More bytes than the buffer has: starts again at its beginning.
  const auto at = [&](void* buffer, size_t moved) {
    return static_cast<char*>(buffer) + moved % buffer_bytes;
  };
  const auto window = [&](size_t moved) {
    return std::min({kWindow, bytes - moved, buffer_bytes - moved % buffer_bytes});
  };
  const int next = (rank_ + 1) % ranks_, before = (rank_ + ranks_ - 1) % ranks_;
  const auto lost = [&](int rank, const absl::Status& why) {
    return Unavailable("limits: rank ", rank_, " lost rank ", rank, ": ", why.message());
  };
  size_t sent = 0, received = 0;
  MonotonicTime deadline = MonotonicTime::InfiniteFuture();
  for (int idle = 0; sent < bytes || received < bytes;) {
    bool moved = false;
    if (sent < bytes) {
      const absl::StatusOr<size_t> n = links.next.Send(at(copy_from_, sent), window(sent));
      if (!n.ok()) return lost(next, n.status());
      sent += *n;
      moved = *n > 0;
    }
    if (received < bytes) {
      const absl::StatusOr<size_t> n = links.before.Receive(at(copy_to_, received), window(received));
      if (!n.ok()) return lost(before, n.status());
      received += *n;
      moved = moved || *n > 0;
    }
    if (moved) {
      idle = 0;
      deadline = MonotonicTime::InfiniteFuture();
      continue;
    }
    if (++idle < kLooks) {
      sched_yield();
      continue;
    }
    if (deadline == MonotonicTime::InfiniteFuture()) deadline = MonotonicNow() + timeout_;
    pollfd waiting[] = {{received < bytes ? links.before.fd() : -1, POLLIN, 0},
                        {sent < bytes ? links.next.fd() : -1, POLLOUT, 0}};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - MonotonicNow());
    if (left_ms <= 0) {
      return DeadlineExceeded("limits: rank ", rank_, " waited ", SecondsText(timeout_), " for rank ",
                              received < bytes ? before : next);
    }
    if (poll(waiting, 2, static_cast<int>(std::min<int64_t>(left_ms, 1000))) < 0 && errno != EINTR) {
      return SocketError("poll");
    }
  }
  return absl::OkStatus();
}

}  // namespace psring
