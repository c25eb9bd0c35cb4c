#include "ring_worker/transports/mesh_connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/address.h"
#include "common/net/host_identity.h"
#include "common/net/link_shaper.h"
#include "common/net/random_token.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr size_t kTokenDigits = 32;
constexpr size_t kMaxCardBytes = 1024;  // of a rank's addresses
// Between checks whether a rank has died that this one waits for.
constexpr absl::Duration kCheckRanksEvery = absl::Milliseconds(200);
// Two ranks often want each other at the same time; then nobody needs to ask.
constexpr absl::Duration kBeforeAsking = absl::Milliseconds(10);
// A rank may have connected just before it left.
constexpr absl::Duration kForArrival = absl::Milliseconds(100);

// Equal for processes that can share memory: those of one kernel and network namespace, in which abstract
// Unix sockets exist.
std::string HostId() {
  const std::string boot = BootId(), network = NamespaceId("net");
  return boot.empty() || network.empty() ? RandomToken(kTokenDigits) : absl::StrCat(boot, "/", network);
}

}  // namespace

MeshConnections::MeshConnections(Rendezvous& rendezvous, const MeshOptions& options)
    : rendezvous_(rendezvous),
      options_(options),
      rank_(rendezvous.options().rank),
      size_(rendezvous.options().world_size),
      credentials_{rendezvous.options().secret, Purpose::kMesh, NewListenerToken()},
      unix_name_(absl::StrCat("psring-", RandomToken(kTokenDigits))),
      addresses_(static_cast<size_t>(size_)),
      shares_(static_cast<size_t>(size_)) {}

absl::StatusOr<std::unique_ptr<MeshConnections>> MeshConnections::Start(Rendezvous& rendezvous,
                                                                        const MeshOptions& options) {
  const std::string& host = options.bind_host;
  if (host.empty() || IsWildcard(host)) {
    return InvalidArgument("\"", host,
                           "\" is not an address that other ranks can reach; choose one of this machine");
  }
  std::unique_ptr<MeshConnections> made(new MeshConnections(rendezvous, options));
  PSRING_RETURN_IF_ERROR(CheckCredentials(made->credentials_));
  PSRING_RETURN_IF_ERROR(made->Listen());
  const std::string host_id = HostId();
  PSRING_ASSIGN_OR_RETURN(
      const std::vector<std::string> cards,
      rendezvous.Exchange("mesh", absl::StrCat(made->listener_.port, " ", host, " ", made->credentials_.token,
                                               " ", made->unix_name_, " ", options.transport, " ", host_id,
                                               " ", options.schedule)));
  for (int peer = 0; peer < made->size_; ++peer) {
    PSRING_RETURN_IF_ERROR(made->ReadCard(peer, cards[static_cast<size_t>(peer)], host_id));
  }
  return made;
}

absl::Status MeshConnections::Listen() {
  PSRING_ASSIGN_OR_RETURN(listener_, ListenTcp(options_.bind_host));
  if (options_.transport == "tcp") return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(unix_listener_, UnixSocket::Listen(unix_name_));
  return absl::OkStatus();
}

absl::Status MeshConnections::ReadCard(int peer, const std::string& card, const std::string& host_id) {
  const std::vector<std::string> fields = absl::StrSplit(card, absl::MaxSplits(' ', 6));
  Address& address = addresses_[static_cast<size_t>(peer)];
  if (card.size() > kMaxCardBytes || fields.size() != 7 || !absl::SimpleAtoi(fields[0], &address.port) ||
      fields[2].size() != kTokenDigits) {
    return Internal("rank ", Name(peer), " published an invalid address: ", PeerText(card));
  }
  for (const auto& [what, theirs, mine] : {std::tuple("transport", fields[4], options_.transport),
                                           std::tuple("algorithm", fields[6], options_.schedule)}) {
    if (theirs == mine) continue;
    return FailedPrecondition("rank ", Name(peer), " uses ", what, " ", PeerText(theirs), ", rank ",
                              Name(rank_), " ", mine);
  }
  address.host = fields[1];
  address.credentials = {credentials_.secret, Purpose::kMesh, fields[2]};
  address.unix_name = fields[3];
  const bool on_this_host = fields[5] == host_id;
  if (peer == rank_) return absl::OkStatus();
  if (options_.transport == "shm" && !on_this_host) {
    return Cannot("share memory with", peer,
                  absl::FailedPreconditionError("they are not on one host (or in one network namespace); "
                                                "choose transport auto or tcp"));
  }
  const int each = options_.ranks_per_node;
  const bool on_one_node = each <= 0 || peer / each == rank_ / each;
  const bool shares = options_.transport == "shm" || (options_.transport == "auto" && on_one_node);
  shares_[static_cast<size_t>(peer)] = shares && on_this_host;
  near_ &= (shares || options_.bind_host == address.host) && on_this_host;
  return absl::OkStatus();
}

MeshConnections::~MeshConnections() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    for (Worker& worker : workers_) {
      if (worker.pending.valid()) shutdown(worker.pending.get(), SHUT_RD);
    }
    changed_.NotifyAll();
  }
  shutdown(listener_.socket.get(), SHUT_RDWR);  // ends PendingConnections::Wait
  if (acceptor_.joinable()) acceptor_.join();
  if (watcher_.joinable()) watcher_.join();
  std::vector<std::thread> workers;
  {
    MutexLock lock(mutex_);
    for (Worker& worker : workers_) workers.push_back(std::move(worker.thread));
  }
  for (std::thread& worker : workers) {
    if (worker.joinable()) worker.join();
  }
}

void MeshConnections::Serve(const SharedArena* own, OnConnected on_connected, OnGivenUp on_given_up) {
  own_ = own;
  on_connected_ = std::move(on_connected);
  on_given_up_ = std::move(on_given_up);
  if (size_ > 1) acceptor_ = std::thread([this] { Accept(); });
}

void MeshConnections::Want(int peer) {
  MutexLock lock(mutex_);
  if (peer > rank_) {
    if (accepted_.contains(peer)) return;
    awaited_.insert(peer);
    has_new_ = true;
    changed_.NotifyAll();
    if (watching_) return;
    // A previous watcher has ended, or is about to, without the lock.
    if (watcher_.joinable()) watcher_.join();
    watching_ = true;
    watcher_ = std::thread([this] { Watch(); });
    return;
  }
  StartWork(peer);
}

// --- the lower rank accepts ---

void MeshConnections::Accept() {
  PendingConnections pending(credentials_);
  const std::array<int, 2> listeners = {listener_.socket.get(), unix_listener_.fd()};
  while (true) {
    auto members = pending.Wait(listeners, MonotonicTime::InfiniteFuture());
    if (absl::IsCancelled(members.status())) return;
    if (!members.ok()) {
      absl::SleepFor(kBetweenTries);  // perhaps others close descriptors
      continue;
    }
    for (PendingConnections::Member& member : *members) Place(std::move(member));
  }
}

bool MeshConnections::Complete(int peer, const PeerConnections& connections) const {
  const bool shares = shares_[static_cast<size_t>(peer)];
  return connections.control != nullptr &&
         (shares ? connections.unix_socket.valid() : connections.data.valid());
}

// Drops a connection that is not expected.
void MeshConnections::Place(PendingConnections::Member member) {
  const auto channel = static_cast<Channel>(static_cast<uint32_t>(member.detail));
  if (member.detail >> 32 >= static_cast<uint64_t>(size_)) return;
  const int peer = static_cast<int>(member.detail >> 32);
  if (peer == rank_) return;
  if (peer < rank_) {
    MutexLock lock(mutex_);
    if (channel == Channel::kRequest) StartWork(peer);
    return;
  }
  if (placed_.contains(peer)) return;
  const bool is_unix = member.listener == 1;
  if (is_unix != (channel == Channel::kUnix)) return;
  const bool shares = shares_[static_cast<size_t>(peer)];
  PeerConnections& arriving = arriving_[peer];
  if (is_unix) {
    if (!shares || arriving.unix_socket.valid()) return;
    arriving.unix_socket = UnixSocket(member.socket.TakeDescriptor());
  } else {
    if (channel != Channel::kControl && (shares || channel != Channel::kData)) return;
    const bool is_control = channel == Channel::kControl;
    if (is_control ? arriving.control != nullptr : arriving.data.valid()) return;
    if (is_control) {
      arriving.control = std::make_unique<MemberSocket>(std::move(member.socket));
    } else {
      arriving.data = std::move(member.socket);
    }
  }
  if (!Complete(peer, arriving)) return;
  PeerConnections complete = std::move(arriving);
  arriving_.erase(peer);
  placed_.insert(peer);
  (void)complete.control->Send(&kAccepted, 1);  // fits into an empty buffer
  absl::Status status = Prepare(complete);
  if (shares && status.ok()) {
    status = own_->Offer(complete.unix_socket);
    absl::StatusOr<SharedArena> theirs =
        SharedArena::Adopt(size_, complete.unix_socket, MonotonicNow() + kForOffer);
    if (theirs.ok()) complete.arena = *std::move(theirs);
    if (status.ok()) status = theirs.status();
    if (!status.ok()) status = Cannot("share memory with", peer, status);
  }
  {
    MutexLock lock(mutex_);
    accepted_.insert(peer);
    awaited_.erase(peer);
    changed_.NotifyAll();
  }
  on_connected_(peer, status.ok() ? absl::StatusOr<PeerConnections>(std::move(complete)) : status);
}

void MeshConnections::Watch() {
  while (true) {
    bool is_new = false;
    {
      MutexLock lock(mutex_);
      is_new = std::exchange(has_new_, false);
      const MonotonicTime until = MonotonicNow() + (is_new ? kBeforeAsking : kCheckRanksEvery);
      bool in_time = true;
      while (in_time && !has_new_ && !closing_ && !awaited_.empty()) {
        in_time = changed_.WaitUntil(mutex_, until);
      }
      if (closing_ || awaited_.empty()) {
        watching_ = false;
        return;
      }
      if (has_new_) continue;
      for (const int peer : awaited_) StartWork(peer);
    }
    if (is_new) continue;
    const absl::Status lost = rendezvous_.CheckRanks("to connect");
    if (lost.ok()) continue;
    std::set<int> awaited;
    {
      MutexLock lock(mutex_);
      awaited = awaited_;
    }
    for (const int peer : awaited) Fail(peer, lost);
  }
}

void MeshConnections::Fail(int peer, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    const MonotonicTime until = MonotonicNow() + kForArrival;
    bool in_time = true;
    while (in_time && !closing_ && awaited_.contains(peer)) in_time = changed_.WaitUntil(mutex_, until);
    if (closing_ || awaited_.erase(peer) == 0) return;
    changed_.NotifyAll();
  }
  on_connected_(peer, why);
}

absl::Status MeshConnections::Prepare(PeerConnections& connections) const {
  if (options_.shaper == nullptr || !connections.data.valid()) return absl::OkStatus();
  return options_.shaper->Shape(connections.data);
}

}  // namespace psring
