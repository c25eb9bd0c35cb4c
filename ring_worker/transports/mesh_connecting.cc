// Connecting and asking, on the threads of MeshConnections.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "ring_worker/transports/mesh_connections.h"

namespace psring {
namespace {

// Of one attempt to open a TCP connection, so that a worker notices that it must end.
constexpr absl::Duration kLongestAttempt = absl::Seconds(1);
// After a connection has failed: how long to wait until the store knows of the rank that died.
constexpr absl::Duration kLossTimeout = absl::Seconds(1);

// Ends a worker's wait, which is only to receive: it may still send why it ends.
void EndWait(int socket) { shutdown(socket, SHUT_RD); }

}  // namespace

// While it exists, the destructor can end a worker's wait for this socket.
class MeshConnections::Pending {
 public:
  Pending(MeshConnections& connections, Worker& worker, int socket)
      : connections_(connections), worker_(worker) {
    MutexLock lock(connections_.mutex_);
    worker_.pending = FileDescriptor(fcntl(socket, F_DUPFD_CLOEXEC, 0));
    if (connections_.closing_) EndWait(socket);
  }
  ~Pending() {
    MutexLock lock(connections_.mutex_);
    worker_.pending = FileDescriptor();
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

 private:
  MeshConnections& connections_;
  Worker& worker_;
};

void MeshConnections::StartWork(int peer) {
  if (closing_ || !started_.insert(peer).second) return;
  work_.push_back(peer);
  for (Worker& worker : workers_) {
    if (!worker.over) continue;
    if (worker.thread.joinable()) worker.thread.join();
    worker.over = false;
    worker.thread = std::thread([this, &worker] { Work(worker); });
    return;
  }
}

void MeshConnections::Work(Worker& worker) {
  while (true) {
    int peer = 0;
    {
      MutexLock lock(mutex_);
      if (closing_ || work_.empty()) {
        worker.over = true;
        return;
      }
      peer = work_.front();
      work_.pop_front();
    }
    if (peer > rank_) {
      Ask(peer, worker);
      continue;
    }
    PeerConnections made;
    if (absl::Status status = ConnectTo(peer, worker, made); status.ok()) {
      on_connected_(peer, std::move(made));
    } else {
      status = Explain(status);
      if (made.control != nullptr) on_given_up_(*made.control, status);
      on_connected_(peer, status);
    }
  }
}

void MeshConnections::Ask(int peer, Worker& worker) {
  const MonotonicTime deadline = MonotonicNow() + rendezvous_.options().timeout;
  const absl::Status asked = ConnectTcpTo(peer, Channel::kRequest, deadline, worker).status();
  if (!asked.ok()) Fail(peer, Explain(asked));
}

absl::Status MeshConnections::ConnectTo(int peer, Worker& worker, PeerConnections& made) {
  const MonotonicTime deadline = MonotonicNow() + rendezvous_.options().timeout;
  const bool shares = shares_[static_cast<size_t>(peer)];
  if (shares) {
    PSRING_ASSIGN_OR_RETURN(made.unix_socket, ConnectUnixTo(peer, deadline, worker));
    if (const absl::Status offered = own_->Offer(made.unix_socket); !offered.ok()) {
      return Cannot("reach", peer, offered);
    }
  }
  if (!shares) {
    PSRING_ASSIGN_OR_RETURN(made.data, ConnectTcpTo(peer, Channel::kData, deadline, worker));
  }
  PSRING_ASSIGN_OR_RETURN(MemberSocket control, ConnectTcpTo(peer, Channel::kControl, deadline, worker));
  made.control = std::make_unique<MemberSocket>(std::move(control));
  {
    const Pending pending(*this, worker, made.control->fd());
    char accepted = 0;
    absl::Status status = ReceiveAll(*made.control, &accepted, 1, deadline, "it");
    if (status.ok() && accepted != kAccepted) status = absl::UnavailableError("it sent an invalid answer");
    if (!status.ok()) return Cannot("reach", peer, status);
  }
  if (shares) {
    const Pending pending(*this, worker, made.unix_socket.fd());
    absl::StatusOr<SharedArena> theirs = SharedArena::Adopt(size_, made.unix_socket, deadline);
    if (!theirs.ok()) return Cannot("share memory with", peer, theirs.status());
    made.arena = *std::move(theirs);
  }
  return Prepare(made);
}

// A rank with too many connections from strangers may close one of ours: then tries again with another one.
absl::StatusOr<MemberSocket> MeshConnections::ConnectTcpTo(int peer, Channel channel, MonotonicTime deadline,
                                                           Worker& worker) {
  const Address& address = addresses_[static_cast<size_t>(peer)];
  while (true) {
    absl::StatusOr<FileDescriptor> tcp =
        ConnectTcp(address.host, address.port, std::min(deadline, MonotonicNow() + kLongestAttempt));
    absl::Status status = tcp.status();
    bool again = absl::IsDeadlineExceeded(status);
    if (status.ok()) {
      const Pending pending(*this, worker, tcp->get());
      absl::StatusOr<MemberSocket> socket =
          AuthenticateTcp(*std::move(tcp), address.credentials, "it", deadline, DetailOf(channel));
      if (socket.ok()) return socket;
      status = socket.status();
      again = absl::IsUnavailable(status);
    }
    if (!again || MonotonicNow() + kBetweenTries >= deadline || is_closing())
      return Cannot("reach", peer, status);
    absl::SleepFor(kBetweenTries);
  }
}

absl::StatusOr<UnixSocket> MeshConnections::ConnectUnixTo(int peer, MonotonicTime deadline, Worker& worker) {
  const Address& address = addresses_[static_cast<size_t>(peer)];
  const uint64_t detail = DetailOf(Channel::kUnix);
  while (true) {
    absl::StatusOr<UnixSocket> socket = UnixSocket::Connect(address.unix_name, MonotonicNow() + kForOffer);
    if (!socket.ok()) return Cannot("reach", peer, socket.status());
    const Pending pending(*this, worker, socket->fd());
    const absl::Status status = AuthenticateTo(socket->fd(), address.credentials, "it", deadline, detail);
    if (status.ok()) return socket;
    if (!absl::IsUnavailable(status) || MonotonicNow() + kBetweenTries >= deadline || is_closing()) {
      return Cannot("reach", peer, status);
    }
    absl::SleepFor(kBetweenTries);
  }
}

absl::Status MeshConnections::Cannot(const char* what, int peer, const absl::Status& why) const {
  return Prefixed(why, "rank ", Name(rank_), " cannot ", what, " rank ", Name(peer), ": ");
}

// A peer closes its connections when it dies, and also when it has lost another one.
absl::Status MeshConnections::Explain(const absl::Status& symptom) {
  const MonotonicTime deadline = MonotonicNow() + kLossTimeout;
  while (absl::IsUnavailable(symptom) && !is_closing()) {
    PSRING_RETURN_IF_ERROR(rendezvous_.CheckRanks("to connect"));
    if (MonotonicNow() >= deadline) break;
    absl::SleepFor(kBetweenTries);
  }
  return symptom;
}

}  // namespace psring
