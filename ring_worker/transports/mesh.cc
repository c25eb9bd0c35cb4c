// The mesh: setup, and starting transfers.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/cores.h"
#include "common/measure/wires.h"
#include "ring_worker/transports/mesh_layout.h"
#include "ring_worker/transports/mesh_transport.h"

namespace psring {
namespace {

// In a larger mesh the slots of all pairs would take gigabytes.
constexpr int kMostTouching = 16;

uint64_t HashOf(const CallInfo& call) {
  uint64_t words[sizeof call / 8];
  std::memcpy(words, &call, sizeof call);
  uint64_t hash = 0x9e3779b97f4a7c15;
  for (uint64_t word : words) hash = (hash ^ word) * 0xff51afd7ed558ccd, hash ^= hash >> 29;
  return hash;
}

absl::Status SetBuffers(const PeerConnections& peer, int bytes) {
  for (const FileDescriptor& data : peer.data) {
    if (setsockopt(data.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0 ||
        setsockopt(data.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) != 0) {
      return SystemError("cannot set the size of a socket's buffers");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeshTransport::Connect(std::vector<PeerConnections> connections, const MeshOptions& options,
                                    absl::Time deadline) {
  for (PeerConnections& peer : connections) {
    if (peer.unix_socket.valid()) PSRING_RETURN_IF_ERROR(arena_->Offer(peer.unix_socket));
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    PeerConnections& from = connections[rank];
    Peer& peer = peers_[rank];
    peer.control = std::make_unique<ControlConnection>(names_[rank_], names_[rank], std::move(from.control));
    for (FileDescriptor& data : from.data) {
      peer.streams.emplace_back(names_[rank_], names_[rank], std::move(data));
    }
    if (!from.unix_socket.valid()) continue;
    absl::StatusOr<SharedArena> theirs = SharedArena::Adopt(size(), from.unix_socket, deadline);
    if (!theirs.ok()) {
      return absl::Status(theirs.status().code(),
                          absl::StrCat("rank ", names_[rank_], " cannot share memory with rank ",
                                       names_[rank], ": ", theirs.status().message()));
    }
    peer.shared = std::make_unique<SharedLink>(rank_, rank, *arena_, *std::move(theirs),
                                               std::move(from.unix_socket), size() <= kMostTouching);
    peer.shared->NameRanks(names_[rank_], names_[rank]);
    ++shared_peers_;
  }
  polled_.reserve(1 + size() * (1 + options.sockets_per_peer));
  terms_.reserve(size() + 1);
  // Counts all ranks: those connected over TCP may be on this host too.
  crowded_ = size() > static_cast<int>(AllowedCores().size());
  return absl::OkStatus();
}

MeshTransport::~MeshTransport() {
  MutexLock lock(failure_mutex_);
  if (failure_.ok()) NotifyPeers(absl::StatusCode::kOk, "");
}

void MeshTransport::BeginCall(const CallInfo& call) {
  header_ = FrameHeader{};
  header_.call = call;
  CallInfo identity = call;
  identity.number = 0;
  call_hash_ = HashOf(identity);
  if (arena_) arena_->NoteCall(call);
}

void MeshTransport::Send(int to, Tag tag, ConstSpan from, bool copy) {
  PSRING_CHECK(to >= 0 && to < size() && to != rank_);
  const uint64_t transfers = Open(tag);
  const FrameHeader header = Header(tag, from.bytes());
  const auto* payload = static_cast<const std::byte*>(from.data);
  Peer& peer = peers_[to];
  if (peer.shared != nullptr) {
    if (peer.waiting.empty() && SendShared(peer, header, payload, copy, transfers)) return;
    WaitingFrame& waiting = peer.waiting.PushBack();
    waiting.header = header;
    waiting.transfers = transfers;
    waiting.copy = copy;
    waiting.payload = copy ? Keep(waiting.kept, payload, header.bytes) : payload;
    return;
  }
  FrameStream& stream = peer.streams[peer.frames_out++ % peer.streams.size()];
  OutgoingFrame& frame = stream.out().PushBack();
  frame.header = header;
  frame.transfer = transfers;
  frame.sent = 0;
  frame.payload = payload;
  // Immediately, so that the peer does not depend on our next wait.
  if (stream.out().size() == 1 && early_failure_.ok()) early_failure_ = Write(to, stream);
  if (copy && !stream.out().empty()) {  // our frame is the last
    OutgoingFrame& unsent = stream.out().back();
    unsent.payload = Keep(unsent.copy, payload, header.bytes);
  }
}

void MeshTransport::Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources) {
  const uint64_t number = gathers_.popped() + gathers_.size();
  Gather& gather = gathers_.PushBack();
  gather.expected = Header(tag, to.bytes());
  gather.transfers = Open(tag);
  gather.to = to;
  gather.op = op;
  gather.own = static_cast<const std::byte*>(own);
  gather.sources.assign(sources.begin(), sources.end());
  gather.next = 0;
  gather.complete = false;
  gather.all_shared = true;
  for (int source : sources) {
    PSRING_CHECK(source >= 0 && source < size());
    if (source != rank_) gather.all_shared &= peers_[source].shared != nullptr;
  }
  // Earlier sources overwrite our own value.
  if (!gather.all_shared && own == to.data && own != nullptr && sources.front() != rank_) {
    gather.own = Keep(gather.own_copy, gather.own, to.bytes());
  }
  if (gather.sources.front() == rank_) gather.next = 1;
  for (size_t i = 0; i < gather.sources.size(); ++i) {
    if (gather.sources[i] == rank_) continue;
    Peer& peer = peers_[gather.sources[i]];
    peer.expected.PushBack() = number;
    if (peer.shared != nullptr) continue;
    IncomingFrame& frame = peer.streams[peer.frames_in++ % peer.streams.size()].in().PushBack();
    frame.expected = gather.expected;
    frame.to = to;
    frame.op = op;
    frame.base = BaseOf(gather, i);
    frame.gather = number;
    frame.received = 0;
  }
}

absl::Status MeshTransport::Wait(Tag tag, absl::Duration timeout) {
  size_t at = 0;
  while (at < transfers_.size() && !(transfers_[at].tag == tag)) ++at;
  const uint64_t number = transfers_.popped() + at;
  const absl::Time begin = absl::Now();
  absl::Status status = at == transfers_.size() ? early_failure_ : Progress(number, timeout);
  if (!status.ok() && gives_up_ && at < transfers_.size() && !aborted_.load(std::memory_order_acquire)) {
    status = GiveUpWaiting(number, tag, absl::Now() - begin, timeout);
  }
  while (!transfers_.empty() && transfers_.front().unfinished == 0) transfers_.PopFront();
  if (status.ok() && !aborted_.load(std::memory_order_relaxed)) return status;
  if (!status.ok()) Abort(status);
  return failure();
}

absl::Status MeshTransport::Register(const Buffer& buffer) {
  if (buffer.shared_fd() < 0) return absl::OkStatus();
  for (Peer& peer : peers_) {
    if (peer.shared != nullptr) PSRING_RETURN_IF_ERROR(peer.shared->Register(buffer));
  }
  return absl::OkStatus();
}

void MeshTransport::Unregister(const Buffer& buffer) {
  for (Peer& peer : peers_) {
    if (peer.shared != nullptr) peer.shared->Unregister(buffer);
  }
}

void MeshTransport::Abort(absl::Status why) {
  MutexLock lock(failure_mutex_);
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  aborted_.store(true, std::memory_order_release);
  // A peer's reason is relayed unchanged.
  NotifyPeers(failure_.code(), relayed_
                                   ? std::string(failure_.message())
                                   : absl::StrCat("rank ", names_[rank_], " gave up: ", failure_.message()));
  if (arena_) arena_->Ring();
  const uint64_t one = 1;
  PSRING_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one);
}

uint64_t MeshTransport::Open(const Tag& tag) {
  if (transfers_.empty() || !(transfers_.back().tag == tag)) {
    Transfers& opened = transfers_.PushBack();
    opened.tag = tag;
    opened.unfinished = 0;
  }
  ++transfers_.back().unfinished;
  return transfers_.popped() + transfers_.size() - 1;
}

void MeshTransport::NotifyPeers(absl::StatusCode code, const std::string& message, int waits_for) {
  if (std::exchange(has_notified_, true)) return;
  for (Peer& peer : peers_) {
    if (peer.control == nullptr) continue;
    SendFinalMessage(peer.control->fd(), code, message, waits_for);
    if (peer.shared != nullptr) peer.shared->theirs().Ring();
  }
}

absl::StatusOr<std::unique_ptr<Transport>> MakeMeshTransport(Rendezvous& rendezvous,
                                                             const MeshOptions& options) {
  if (options.sockets_per_peer < 1 || options.sockets_per_peer > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("sockets_per_peer must be 1 to 64, not ", options.sockets_per_peer));
  }
  const int size = rendezvous.options().world_size;
  PSRING_ASSIGN_OR_RETURN(std::vector<PeerConnections> connections, ConnectMesh(rendezvous, options));
  int shared_peers = 0;
  for (const PeerConnections& peer : connections) {
    if (options.socket_buffer_bytes > 0)
      PSRING_RETURN_IF_ERROR(SetBuffers(peer, options.socket_buffer_bytes));
    shared_peers += peer.unix_socket.valid() ? 1 : 0;
  }
  PSRING_ASSIGN_OR_RETURN(const MeshLayout layout, AgreeOnLayout(rendezvous, connections));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemError("cannot open an eventfd");
  std::optional<SharedArena> arena;
  if (shared_peers > 0) {
    PSRING_ASSIGN_OR_RETURN(arena, SharedArena::Create(size, wake.get()));
  }
  std::vector<std::string> wires;
  if (shared_peers > 0) wires.emplace_back(kSharedMemoryWire);
  if (shared_peers < size - 1) wires.emplace_back(kTcpWire);
  const TransportInfo info = {.name = shared_peers == 0          ? "tcp"
                                      : shared_peers == size - 1 ? "shm"
                                                                 : "shm+tcp",
                              .wires = std::move(wires),
                              .rank = rendezvous.options().rank,
                              .size = size,
                              .ranks_per_node = layout.ranks_per_node,
                              .traits = TraitsOf(layout)};
  std::vector<int> names;
  for (int rank = 0; rank < size; ++rank) names.push_back(rendezvous.options().JobRank(rank));
  auto mesh = std::make_unique<MeshTransport>(info, std::move(names), std::move(wake), std::move(arena));
  PSRING_RETURN_IF_ERROR(
      mesh->Connect(std::move(connections), options, absl::Now() + rendezvous.options().timeout));
  return mesh;
}

}  // namespace psring
