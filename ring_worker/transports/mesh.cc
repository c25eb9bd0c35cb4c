// The mesh: setup, connecting, and starting transfers.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/device/control_groups.h"
#include "common/measure/wires.h"
#include "ring_worker/transports/mesh_layout.h"
#include "ring_worker/transports/mesh_transport.h"

namespace psring {
namespace {

// In a larger mesh the slots of all pairs would take gigabytes.
constexpr int kMaxTouchingRanks = 16;

// A peer writes a reply within microseconds, unless it is stopped or has been killed meanwhile.
constexpr absl::Duration kForReplies = absl::Milliseconds(100);

uint64_t HashOf(const CallInfo& call) {
  uint64_t words[sizeof call / 8];
  std::memcpy(words, &call, sizeof call);
  uint64_t hash = 0x9e3779b97f4a7c15;
  for (uint64_t word : words) hash = (hash ^ word) * 0xff51afd7ed558ccd, hash ^= hash >> 29;
  return hash;
}

}  // namespace

MeshTransport::MeshTransport(const TransportInfo& info, std::vector<int> names, FileDescriptor wake,
                             FileDescriptor waker, std::optional<SharedArena> arena,
                             std::unique_ptr<MeshConnections> connections)
    : Transport(info),
      rank_(info.rank),
      names_(std::move(names)),
      wake_(std::move(wake)),
      waker_(std::move(waker)),
      arena_(std::move(arena)),
      peers_(static_cast<size_t>(info.size)),
      // Counts all ranks: those connected over TCP may be on this host too.
      oversubscribed_(info.size > UsableCores()),
      window_(kWindowBytes + sizeof(float)),
      connections_(std::move(connections)) {
  connections_->Serve(
      arena_ ? &*arena_ : nullptr,
      [this](int rank, absl::StatusOr<PeerConnections> connected) {
        OnConnected(rank, std::move(connected));
      },
      [this](MemberSocket& control, const absl::Status& why) { OnGivenUp(control, why); });
}

MeshTransport::~MeshTransport() {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) NotifyPeers({absl::StatusCode::kOk, ""});
  }
  connections_.reset();
}

// --- connecting ---

MeshTransport::Peer& MeshTransport::Use(int rank, bool wanted) {
  peers_[rank] = std::make_unique<Peer>();
  Peer& peer = *peers_[rank];
  used_.insert(std::lower_bound(used_.begin(), used_.end(), rank), rank);
  peer.shares = connections_->shares()[rank];
  ++(peer.shares ? shared_peers_ : tcp_peers_);
  if (!peer.shares) peer.stream.emplace(names_[rank_], names_[rank]);
  ++unconnected_;
  polled_.reserve(1 + used_.size() * 2);
  terms_.reserve(used_.size() + 2);
  if (wanted) connections_->Want(rank);
  return peer;
}

void MeshTransport::OnConnected(int rank, absl::StatusOr<PeerConnections> connections) {
  {
    MutexLock lock(mutex_);
    if (connections.ok()) {
      MemberSocket& control = *connections->control;
      for (const Notice& notice : sent_notices_) SendNotice(control, notice);
      contacts_.push_back({rank, &control});
    }
    connected_.emplace_back(rank, std::move(connections));
    has_connected_.store(true, std::memory_order_release);
  }
  WakeSelf();
}

void MeshTransport::OnGivenUp(MemberSocket& control, const absl::Status& why) {
  MutexLock lock(mutex_);
  if (sent_notices_.empty()) SendNotice(control, {why.code(), GaveUp(why.message())});
  for (const Notice& notice : sent_notices_) SendNotice(control, notice);
}

absl::StatusOr<bool> MeshTransport::TakeConnected() {
  if (!has_connected_.load(std::memory_order_acquire)) return false;
  std::vector<std::pair<int, absl::StatusOr<PeerConnections>>> connected;
  {
    MutexLock lock(mutex_);
    connected.swap(connected_);
    has_connected_.store(false, std::memory_order_release);
  }
  absl::Status result;
  for (auto& [rank, connections] : connected) {
    absl::Status status = connections.status();
    if (status.ok()) status = Attach(rank, *std::move(connections));
    if (result.ok()) result = std::move(status);
  }
  PSRING_RETURN_IF_ERROR(result);
  return true;
}

absl::Status MeshTransport::Attach(int rank, PeerConnections from) {
  // A peer may connect before this rank needs it.
  Peer& peer = peers_[rank] != nullptr ? *peers_[rank] : Use(rank, /*wanted=*/false);
  --unconnected_;
  peer.control = std::make_unique<ControlConnection>(names_[rank_], names_[rank], std::move(from.control));
  if (!peer.shares) {
    peer.stream->Connect(std::move(from.data));
    return absl::OkStatus();
  }
  peer.shared = std::make_unique<SharedLink>(rank_, rank, *arena_, *std::move(from.arena),
                                             std::move(from.unix_socket), size() <= kMaxTouchingRanks);
  peer.shared->NameRanks(names_[rank_], names_[rank]);
  for (const SharedRegion& region : registered_) PSRING_RETURN_IF_ERROR(peer.shared->Register(region));
  MutexLock lock(mutex_);
  for (Contact& contact : contacts_) {
    if (contact.rank == rank) contact.shared = peer.shared.get();
  }
  return absl::OkStatus();
}

absl::Status MeshTransport::NotConnected(absl::Duration waited) const {
  std::vector<std::string> missing;
  for (const int rank : used_) {
    if (peers_[rank]->control != nullptr) continue;
    missing.push_back(
        absl::StrCat(rank > rank_ ? "for a connection from rank " : "to connect to rank ", names_[rank]));
  }
  return DeadlineExceeded("rank ", names_[rank_], " waited ", absl::FormatDuration(waited), " ",
                          absl::StrJoin(missing, " and "));
}

absl::Status MeshTransport::ConnectTo(const std::vector<int>& peers, absl::Duration timeout) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  for (const int rank : peers) (void)PeerOf(rank);
  while (unconnected_ > 0) {
    if (aborted_.load(std::memory_order_acquire)) return failure();
    PSRING_ASSIGN_OR_RETURN(const bool took, TakeConnected());
    if (took) continue;
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return NotConnected(timeout);
    PSRING_RETURN_IF_ERROR(Poll(left));
  }
  return absl::OkStatus();
}

// --- transfers ---

void MeshTransport::BeginCall(const CallInfo& call) {
  header_ = FrameHeader{};
  header_.call = call;
  CallInfo identity = call;
  identity.number = 0;
  call_hash_ = HashOf(identity);
  if (arena_) arena_->NoteCall(call);
  for (const int rank : used_) {
    if (peers_[rank]->shared != nullptr) peers_[rank]->shared->BeginCall(passes_caches());
  }
}

void MeshTransport::Send(int to, Tag tag, ConstSpan from, const SendTraits& traits) {
  PSRING_CHECK(to >= 0 && to < size() && to != rank_);
  const uint64_t transfers = Open(tag);
  const FrameHeader header = Header(tag, from.bytes());
  const auto* payload = static_cast<const std::byte*>(from.data);
  Peer& peer = PeerOf(to);
  if (peer.shares) {
    if (peer.shared != nullptr && peer.waiting.empty() &&
        SendShared(peer, header, payload, traits, transfers)) {
      return;
    }
    WaitingFrame& waiting = peer.waiting.PushBack();
    waiting.header = header;
    waiting.transfers = transfers;
    waiting.traits = traits;
    waiting.payload = traits.copy ? Keep(waiting.kept, payload, header.bytes) : payload;
    return;
  }
  FrameStream& stream = *peer.stream;
  OutgoingFrame& frame = stream.out().PushBack();
  frame.header = header;
  frame.transfer = transfers;
  frame.sent = 0;
  frame.payload = payload;
  // Immediately, so that the peer does not depend on our next wait.
  if (stream.out().size() == 1 && stream.fd() >= 0 && early_failure_.ok()) early_failure_ = Write(to, stream);
  if (traits.copy && !stream.out().empty()) {  // our frame is the last
    OutgoingFrame& unsent = stream.out().back();
    unsent.payload = Keep(unsent.copy, payload, header.bytes);
  }
}

void MeshTransport::Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources,
                            bool replies) {
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
  gather.replies = replies;
  gather.all_shared = true;
  for (int source : sources) {
    PSRING_CHECK(source >= 0 && source < size());
    if (source != rank_) gather.all_shared &= PeerOf(source).shares;
  }
  // Earlier sources overwrite our own value.
  if (!gather.all_shared && own == to.data && own != nullptr && sources.front() != rank_) {
    gather.own = Keep(gather.own_copy, gather.own, to.bytes());
  }
  if (gather.sources.front() == rank_) gather.next = 1;
  for (size_t i = 0; i < gather.sources.size(); ++i) {
    if (gather.sources[i] == rank_) continue;
    Peer& peer = *peers_[gather.sources[i]];
    peer.expected.PushBack() = number;
    if (peer.shares) continue;
    IncomingFrame& frame = peer.stream->in().PushBack();
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
  const MonotonicTime begin = MonotonicNow();
  absl::Status status = at == transfers_.size() ? early_failure_ : Progress(number, timeout);
  if (!status.ok() && gives_up_ && at < transfers_.size() && !aborted_.load(std::memory_order_acquire)) {
    status = GiveUpWaiting(number, tag, MonotonicNow() - begin, timeout);
  }
  while (!transfers_.empty() && transfers_.front().unfinished == 0) transfers_.PopFront();
  if (status.ok() && !aborted_.load(std::memory_order_relaxed)) return status;
  if (!status.ok()) Abort(status);
  AwaitReplies();
  return failure();
}

void MeshTransport::AwaitReplies() {
  const MonotonicTime deadline = MonotonicNow() + kForReplies;
  for (const int rank : used_) {
    const SharedLink* const link = peers_[rank]->shared.get();
    while (link != nullptr && link->PeerWritesReply() && MonotonicNow() < deadline) SpinPause();
  }
}

absl::Status MeshTransport::Register(const Buffer& buffer) {
  if (buffer.shared_fd() < 0) return absl::OkStatus();
  // Peers that connect later get it then.
  registered_.push_back({buffer.shared_fd(), static_cast<const std::byte*>(buffer.data()), buffer.bytes()});
  for (const int rank : used_) {
    Peer& peer = *peers_[rank];
    if (peer.shared != nullptr) PSRING_RETURN_IF_ERROR(peer.shared->Register(registered_.back()));
  }
  return absl::OkStatus();
}

bool MeshTransport::IsRegistered(const void* data) const {
  return std::ranges::any_of(registered_, [&](const SharedRegion& region) {
    return std::less_equal<>()(region.data, data) && std::less<>()(data, region.data + region.bytes);
  });
}

void MeshTransport::Unregister(const Buffer& buffer) {
  const auto* const data = static_cast<const std::byte*>(buffer.data());
  std::erase_if(registered_, [&](const SharedRegion& region) { return region.data == data; });
  for (const int rank : used_) {
    Peer& peer = *peers_[rank];
    if (peer.shared != nullptr) peer.shared->Unregister(data);
  }
}

void MeshTransport::Abort(absl::Status why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(why);
    aborted_.store(true, std::memory_order_release);
    if (arena_) arena_->ended().store(1);
    // A peer's reason is relayed unchanged.
    NotifyPeers({failure_.code(), relayed_ ? std::string(failure_.message()) : GaveUp(failure_.message())});
  }
  WakeSelf();
}

std::string MeshTransport::GaveUp(absl::string_view why) const {
  return absl::StrCat("rank ", names_[rank_], " gave up: ", why);
}

void MeshTransport::WakeSelf() {
  if (arena_) arena_->Ring();
  WakeFromPoll(waker_.get());
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

void MeshTransport::NotifyPeers(const Notice& notice) {
  if (!sent_notices_.empty() && (sent_notices_.back().waits_for < 0 || notice.waits_for >= 0)) return;
  sent_notices_.push_back(notice);
  for (const Contact& contact : contacts_) {
    SendNotice(*contact.control, notice);
    if (contact.shared != nullptr) contact.shared->theirs().WakeForControl();
  }
}

absl::StatusOr<std::unique_ptr<Transport>> MakeMeshTransport(Rendezvous& rendezvous,
                                                             const MeshOptions& options) {
  const int size = rendezvous.options().world_size;
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<MeshConnections> connections,
                          MeshConnections::Start(rendezvous, options));
  const std::vector<bool>& shares = connections->shares();
  const auto shared_peers = static_cast<int>(std::count(shares.begin(), shares.end(), true));
  PSRING_ASSIGN_OR_RETURN(const MeshLayout layout, AgreeOnLayout(rendezvous, shares, connections->near()));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return SystemError("cannot open a local socket");
  }
  FileDescriptor wake(ends[0]), waker(ends[1]);
  std::optional<SharedArena> arena;
  if (shared_peers > 0) {
    PSRING_ASSIGN_OR_RETURN(arena, SharedArena::Create(size, waker.get()));
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
  auto mesh = std::make_unique<MeshTransport>(info, std::move(names), std::move(wake), std::move(waker),
                                              std::move(arena), std::move(connections));
  if (options.first_peers == nullptr) return mesh;
  if (const absl::Status status = mesh->ConnectTo(options.first_peers(info), rendezvous.options().timeout);
      !status.ok()) {
    mesh->Abort(status);
    return status;
  }
  return mesh;
}

}  // namespace psring
