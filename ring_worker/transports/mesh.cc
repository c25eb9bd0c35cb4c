// Every rank is connected with every other. *Control* connections carry at most one farewell each, and are
// watched whenever a rank sleeps: bad news must not stand in line behind payload that nobody reads. Payload
// goes through shared memory between ranks of one host (shared_link.h), else over TCP (frame_stream.h).
//
// There are no threads: bytes move inside Send and Wait, on the caller's thread. Where nothing can move it
// spins for a moment, then sleeps: on its bell, a futex, where it waits for ranks of this host alone, else in
// poll(), which its bell ends too. Frames of one peer come in the order in which receives are started; a
// sum's terms are added in the order in which they were listed, whoever is fast.

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/cores.h"
#include "common/mutex.h"
#include "common/reduce.h"
#include "ring_worker/transport.h"
#include "ring_worker/transports/farewell.h"
#include "ring_worker/transports/fifo.h"
#include "ring_worker/transports/frame_stream.h"
#include "ring_worker/transports/mesh_connections.h"
#include "ring_worker/transports/mesh_layout.h"
#include "ring_worker/transports/shared_link.h"

namespace psring {
namespace {

// How long a lost data connection waits for the reason to arrive on its control connection.
constexpr absl::Duration kFarewellPatience = absl::Seconds(1);

// A rank asleep on its futex hears nothing of control connections; it looks at them so often.
constexpr absl::Duration kLongestNap = absl::Milliseconds(20);

// In a mesh of more ranks the slots of all pairs would take gigabytes.
constexpr int kMostTouching = 16;

constexpr int64_t kSpinNs = 100'000;  // longer than it takes to add a segment
constexpr int kPausesBetweenLooks = 16;

// All transfers of one tag.
struct Transfers {
  Tag tag;
  int unfinished = 0;
};

// A receive: sources are applied from left to right.
struct Gather {
  FrameHeader expected;
  uint64_t transfers = 0;  // number
  Span to;
  ReduceOp op = ReduceOp::kSum;
  const std::byte* own = nullptr;
  absl::InlinedVector<int, 16> sources;
  size_t next = 0;          // sources before this one are in `to`
  bool all_shared = false;  // every peer's frame can be read in place: one pass when all are there
  bool complete = false;
  std::vector<std::byte> own_copy;
};

// A frame that found no room yet, or that the peer reads in place.
struct WaitingFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;
  uint64_t transfers = 0;
  bool copy = false;
  std::vector<std::byte> kept;  // the payload, where the caller's memory may change
};
struct UnreadFrame {
  uint64_t number = 0;
  uint64_t transfers = 0;
};

struct Peer {
  std::unique_ptr<ControlConnection> control;
  // Either
  std::unique_ptr<SharedLink> shared;
  Fifo<WaitingFrame> waiting;
  Fifo<UnreadFrame> unread;
  // or
  std::vector<FrameStream> streams;
  uint64_t frames_out = 0, frames_in = 0;  // frame i goes over stream i modulo their number

  Fifo<uint64_t> expected;  // gathers that still need a frame of this peer
};

uint64_t HashOf(const CallInfo& call) {
  uint64_t words[sizeof call / 8];
  std::memcpy(words, &call, sizeof call);
  uint64_t hash = 0x9e3779b97f4a7c15;
  for (uint64_t word : words) hash = (hash ^ word) * 0xff51afd7ed558ccd, hash ^= hash >> 29;
  return hash;
}

class MeshTransport final : public Transport {
 public:
  MeshTransport(int rank, int size, FileDescriptor wake, std::optional<SharedArena> arena,
                const MeshLayout& layout)
      : rank_(rank),
        wake_(std::move(wake)),
        arena_(std::move(arena)),
        layout_(layout),
        peers_(size),
        window_(kWindowBytes + sizeof(float)) {}

  absl::Status Connect(std::vector<PeerConnections> connections, const MeshOptions& options,
                       absl::Time deadline) {
    for (PeerConnections& peer : connections) {
      if (peer.unix_socket.valid()) PSRING_RETURN_IF_ERROR(arena_->Offer(peer.unix_socket));
    }
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      PeerConnections& from = connections[rank];
      Peer& peer = peers_[rank];
      peer.control = std::make_unique<ControlConnection>(rank_, rank, std::move(from.control));
      for (FileDescriptor& data : from.data) peer.streams.emplace_back(rank_, rank, std::move(data));
      if (!from.unix_socket.valid()) continue;
      absl::StatusOr<SharedArena> theirs = SharedArena::Adopt(size(), from.unix_socket, deadline);
      if (!theirs.ok()) {
        return absl::Status(theirs.status().code(),
                            absl::StrCat("rank ", rank_, " cannot share memory with rank ", rank, ": ",
                                         theirs.status().message()));
      }
      peer.shared = std::make_unique<SharedLink>(rank_, rank, *arena_, *std::move(theirs),
                                                 std::move(from.unix_socket), size() <= kMostTouching);
      ++shared_peers_;
    }
    polled_.reserve(1 + size() * (1 + options.sockets_per_peer));
    terms_.reserve(size() + 1);
    // Ranks that are reached over TCP may stand on this host too.
    crowded_ = size() > static_cast<int>(AllowedCores().size());
    return absl::OkStatus();
  }

  ~MeshTransport() override {
    MutexLock lock(failure_mutex_);
    if (failure_.ok()) TellAll(absl::StatusCode::kOk, "");
  }

  std::string name() const override {
    return shared_peers_ == 0 ? "tcp" : shared_peers_ == size() - 1 ? "shm" : "shm+tcp";
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  int ranks_per_node() const override { return layout_.ranks_per_node; }
  TransportTraits traits() const override { return TraitsOf(layout_); }

  void BeginCall(const CallInfo& call) override {
    header_ = FrameHeader{};
    header_.call = call;
    CallInfo identity = call;
    identity.number = 0;
    call_hash_ = HashOf(identity);
    if (arena_) arena_->NoteCall(call);
  }

  void Send(int to, Tag tag, ConstSpan from, bool copy) override {
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
    // At once, so that the peer need not wait for our next wait.
    if (stream.out().size() == 1 && early_failure_.ok()) early_failure_ = Write(to, stream);
    if (copy && !stream.out().empty()) {  // ours is the last
      OutgoingFrame& unsent = stream.out().back();
      unsent.payload = Keep(unsent.copy, payload, header.bytes);
    }
  }

  void Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources) override {
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
    // What comes before our own value overwrites it.
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

  absl::Status Wait(Tag tag, absl::Duration timeout) override {
    size_t at = 0;
    while (at < transfers_.size() && !(transfers_[at].tag == tag)) ++at;
    absl::Status status =
        at == transfers_.size() ? early_failure_ : Progress(transfers_.popped() + at, tag, timeout);
    while (!transfers_.empty() && transfers_.front().unfinished == 0) transfers_.PopFront();
    if (status.ok() && !aborted_.load(std::memory_order_relaxed)) return status;
    if (!status.ok()) Abort(status);
    return failure();
  }

  absl::Status Register(const Buffer& buffer) override {
    if (buffer.shared_fd() < 0) return absl::OkStatus();
    for (Peer& peer : peers_) {
      if (peer.shared != nullptr) PSRING_RETURN_IF_ERROR(peer.shared->Register(buffer));
    }
    return absl::OkStatus();
  }

  void Unregister(const Buffer& buffer) override {
    for (Peer& peer : peers_) {
      if (peer.shared != nullptr) peer.shared->Unregister(buffer);
    }
  }

  void Abort(absl::Status why) override {
    MutexLock lock(failure_mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(why);
    aborted_.store(true, std::memory_order_release);
    // A reason that came from another rank is handed on as it is.
    TellAll(failure_.code(), relayed_ ? std::string(failure_.message())
                                      : absl::StrCat("rank ", rank_, " gave up: ", failure_.message()));
    if (arena_) arena_->Ring();
    const uint64_t one = 1;
    PSRING_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one);
  }

  Traffic traffic() const override {
    return {sent_bytes_.load(std::memory_order_relaxed), received_bytes_.load(std::memory_order_relaxed)};
  }

 private:
  FrameHeader Header(const Tag& tag, size_t bytes) const {
    PSRING_CHECK(tag.call == header_.call.number);
    FrameHeader header = header_;
    header.round = tag.round;
    header.segment = tag.segment;
    header.bytes = bytes;
    return header;
  }

  static const std::byte* Keep(std::vector<std::byte>& memory, const std::byte* from, size_t bytes) {
    memory.assign(from, from + bytes);
    return memory.data();
  }

  // What source i's values are combined with; null: they are the first.
  static const std::byte* BaseOf(const Gather& gather, size_t i) {
    if (i == 0) return nullptr;
    return i == 1 && gather.next == 1 ? gather.own : static_cast<const std::byte*>(gather.to.data);
  }

  // The number of the tag's transfers, one more of which has been started.
  uint64_t Open(const Tag& tag) {
    if (transfers_.empty() || !(transfers_.back().tag == tag)) {
      Transfers& opened = transfers_.PushBack();
      opened.tag = tag;
      opened.unfinished = 0;
    }
    ++transfers_.back().unfinished;
    return transfers_.popped() + transfers_.size() - 1;
  }
  void Finish(uint64_t number) { --transfers_[number - transfers_.popped()].unfinished; }
  bool Done(uint64_t number) const {
    return number < transfers_.popped() || transfers_[number - transfers_.popped()].unfinished == 0;
  }

  absl::Status failure() {
    MutexLock lock(failure_mutex_);
    return failure_;
  }

  absl::Status Progress(uint64_t number, const Tag& tag, absl::Duration timeout) {
    PSRING_RETURN_IF_ERROR(early_failure_);
    int64_t idle_since = 0, waited_since = 0;
    for (int looks = 0;; ++looks) {
      if (aborted_.load(std::memory_order_acquire)) return failure();
      PSRING_ASSIGN_OR_RETURN(const bool moved, Turn());
      if (Done(number)) return absl::OkStatus();
      if (moved) {
        idle_since = 0;
        continue;
      }
      if (looks % kPausesBetweenLooks != 0) {
        SpinPause();
        continue;
      }
      const int64_t now = MonotonicNanos();
      if (waited_since == 0) waited_since = now;
      if (idle_since == 0) idle_since = now;
      if (now - idle_since < kSpinNs) {
        // Sleeping costs more than asking again and again; where others want the core, they go first.
        if (crowded_) sched_yield();
        if (shared_peers_ < size() - 1) PSRING_RETURN_IF_ERROR(Poll(absl::ZeroDuration()));
        continue;
      }
      const absl::Duration left = timeout - absl::Nanoseconds(now - waited_since);
      if (left <= absl::ZeroDuration()) return TooLate(number, tag, absl::Nanoseconds(now - waited_since));
      PSRING_RETURN_IF_ERROR(SleepUntilNews(left, number));
      idle_since = 0;
    }
  }

  // Moves what can be moved at once. True if that was anything.
  absl::StatusOr<bool> Turn() {
    bool moved = false;
    // Sends first: others wait for them. In turns, so that neither direction starves.
    for (int rank = 0; rank < size(); ++rank) {
      Peer& peer = peers_[rank];
      if (peer.shared != nullptr) moved |= TurnShared(peer);
      for (FrameStream& stream : peer.streams) {
        if (stream.may_write()) PSRING_RETURN_IF_ERROR(Write(rank, stream));
        if (MayRead(rank, stream)) PSRING_RETURN_IF_ERROR(Read(rank, stream));
        moved |= stream.may_write() || MayRead(rank, stream);
      }
    }
    for (size_t i = 0; i < gathers_.size(); ++i) {
      Gather& gather = gathers_[i];
      if (gather.complete) continue;
      PSRING_ASSIGN_OR_RETURN(const bool took, TakeShared(gather, gathers_.popped() + i));
      moved |= took;
    }
    while (!gathers_.empty() && gathers_.front().complete) gathers_.PopFront();
    return moved;
  }

  // --- shared memory ---

  bool SendShared(Peer& peer, const FrameHeader& header, const std::byte* payload, bool copy,
                  uint64_t transfers) {
    bool taken = false;
    if (!peer.shared->TrySend(header, call_hash_, payload, copy, taken)) return false;
    Count(sent_bytes_, header.bytes);
    if (taken) {
      Finish(transfers);
    } else {
      peer.unread.PushBack() = {peer.shared->sent() - 1, transfers};
    }
    return true;
  }

  bool TurnShared(Peer& peer) {
    bool moved = false;
    if (!peer.unread.empty()) {
      const uint64_t consumed = peer.shared->consumed();
      for (; !peer.unread.empty() && peer.unread.front().number < consumed; moved = true) {
        Finish(peer.unread.front().transfers);
        peer.unread.PopFront();
      }
    }
    for (; !peer.waiting.empty(); moved = true) {
      const WaitingFrame& frame = peer.waiting.front();
      if (!SendShared(peer, frame.header, frame.payload, frame.copy, frame.transfers)) break;
      peer.waiting.PopFront();
    }
    return moved;
  }

  // Applies what is there of frames in shared memory. True if that was anything.
  absl::StatusOr<bool> TakeShared(Gather& gather, uint64_t number) {
    const size_t first = gather.all_shared ? 0 : gather.next;
    const size_t last = gather.all_shared ? gather.sources.size() : gather.next + 1;
    for (size_t i = first; i < last; ++i) {
      const int source = gather.sources[i];
      if (source == rank_) continue;
      const Peer& peer = peers_[source];
      if (peer.shared == nullptr || peer.expected.front() != number || !peer.shared->HasFrame()) return false;
    }
    terms_.clear();
    if (!gather.all_shared) {
      if (const std::byte* base = BaseOf(gather, gather.next); base != nullptr) terms_.push_back(base);
    }
    for (size_t i = first; i < last; ++i) {
      const int source = gather.sources[i];
      if (source == rank_) {
        terms_.push_back(gather.own);
        continue;
      }
      PSRING_ASSIGN_OR_RETURN(const std::byte* payload,
                              peers_[source].shared->Payload(gather.expected, call_hash_));
      terms_.push_back(payload);
    }
    cpu::Reduce(gather.op, gather.to.type, gather.to.count, gather.to.data, terms_.data(),
                static_cast<int>(terms_.size()));
    for (size_t i = first; i < last; ++i) {
      const int source = gather.sources[i];
      if (source == rank_) continue;
      peers_[source].shared->Pop();
      peers_[source].expected.PopFront();
      Count(received_bytes_, gather.expected.bytes);
    }
    gather.next = last;
    Advance(gather);
    return true;
  }

  // Our own values, where it is their turn; then the gather may be complete.
  void Advance(Gather& gather) {
    if (gather.next < gather.sources.size() && gather.sources[gather.next] == rank_) {
      const void* const terms[] = {gather.to.data, gather.own};
      cpu::Reduce(gather.op, gather.to.type, gather.to.count, gather.to.data, terms, 2);
      ++gather.next;
    }
    if (gather.next < gather.sources.size()) return;
    gather.complete = true;
    Finish(gather.transfers);
  }

  // --- TCP ---

  bool MayRead(int rank, const FrameStream& stream) const {
    return stream.may_read() && WantsRead(rank, stream);
  }
  // The first frame is this peer's next one, and its values' turn has come.
  bool WantsRead(int rank, const FrameStream& stream) const {
    if (stream.in().empty()) return false;
    const Gather& gather = gathers_[stream.in().front().gather - gathers_.popped()];
    return gather.sources[gather.next] == rank;
  }

  absl::Status Write(int rank, FrameStream& stream) {
    const absl::StatusOr<FrameStream::Moved> moved = stream.Write();
    if (!moved.ok()) return Explain(rank, moved.status());
    Count(sent_bytes_, moved->bytes);
    if (!moved->complete) return absl::OkStatus();
    Finish(stream.out().front().transfer);
    stream.out().PopFront();
    return absl::OkStatus();
  }

  absl::Status Read(int rank, FrameStream& stream) {
    const absl::StatusOr<FrameStream::Moved> moved = stream.Read(window_);
    if (!moved.ok()) return Explain(rank, moved.status());
    Count(received_bytes_, moved->bytes);
    if (!moved->complete) return absl::OkStatus();
    Gather& gather = gathers_[stream.in().front().gather - gathers_.popped()];
    stream.in().PopFront();
    peers_[rank].expected.PopFront();
    ++gather.next;
    Advance(gather);
    return absl::OkStatus();
  }

  // --- sleeping ---

  // Until something may be able to move, somebody has spoken, or `left` is over.
  absl::Status SleepUntilNews(absl::Duration left, uint64_t number) {
    bool sockets = shared_peers_ == 0;
    for (int rank = 0; rank < size() && !sockets; ++rank) {
      for (const FrameStream& stream : peers_[rank].streams) {
        sockets |= WantsRead(rank, stream) || !stream.out().empty();
      }
    }
    if (shared_peers_ > 0) {
      // From here on whoever has news rings; what came before is found by one more turn.
      arena_->bell().store(static_cast<uint32_t>(sockets ? Sleep::kInPoll : Sleep::kOnFutex));
      absl::StatusOr<bool> moved = Turn();
      if (!moved.ok() || *moved || Done(number) || aborted_.load(std::memory_order_acquire)) {
        arena_->bell().store(static_cast<uint32_t>(Sleep::kAwake));
        return moved.status();
      }
    }
    absl::Status status;
    if (sockets) {
      status = Poll(left);
    } else {
      FutexWait(arena_->bell(), static_cast<uint32_t>(Sleep::kOnFutex), std::min(left, kLongestNap));
      // Not rung: time to look around.
      if (arena_->bell().load() != static_cast<uint32_t>(Sleep::kAwake) || ++naps_ % 64 == 0) {
        status = Poll(absl::ZeroDuration());
      }
    }
    if (arena_) arena_->bell().store(static_cast<uint32_t>(Sleep::kAwake));
    if (status.ok() && arena_) status = MissThoseWhoLeft();
    return status;
  }

  absl::Status Poll(absl::Duration longest) {
    polled_.assign(1, {wake_.get(), POLLIN, 0});
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      const Peer& peer = peers_[rank];
      // A negative descriptor is left out.
      polled_.push_back({peer.control->left() ? -1 : peer.control->fd(), POLLIN, 0});
      for (const FrameStream& stream : peer.streams) {
        const short events = (WantsRead(rank, stream) ? POLLIN : 0) | (stream.out().empty() ? 0 : POLLOUT);
        polled_.push_back({events == 0 ? -1 : stream.fd(), events, 0});
      }
    }
    const int ready = poll(polled_.data(), polled_.size(), PollTimeoutMs(absl::Now() + longest));
    if (ready < 0 && errno != EINTR) return SystemError("cannot wait for peers");
    if (ready <= 0) return absl::OkStatus();
    if (polled_[0].revents != 0 && !aborted_.load(std::memory_order_acquire)) {
      uint64_t rings;
      (void)!read(wake_.get(), &rings, sizeof rings);
    }
    size_t at = 1;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      Peer& peer = peers_[rank];
      if (polled_[at++].revents != 0) PSRING_RETURN_IF_ERROR(Hear(rank));
      for (FrameStream& stream : peer.streams) {
        const short events = polled_[at++].revents;
        const short broken = POLLHUP | POLLERR | POLLNVAL;
        stream.SetReady((events & (POLLIN | broken)) != 0, (events & (POLLOUT | broken)) != 0);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Hear(int rank) {
    ControlConnection& control = *peers_[rank].control;
    absl::Status heard = control.Hear();
    if (control.gave_up()) {
      MutexLock lock(failure_mutex_);
      relayed_ = true;
    }
    return heard;
  }

  // A peer of this host that has left, but whose frame or reading is still needed. What it sent before it
  // left is still in its memory, which we map.
  absl::Status MissThoseWhoLeft() {
    for (int rank = 0; rank < size(); ++rank) {
      const Peer& peer = peers_[rank];
      if (peer.shared == nullptr || !peer.control->left()) continue;
      const bool needs_frame = !peer.expected.empty() && !peer.shared->HasFrame();
      const bool needs_reading =
          !peer.waiting.empty() ||
          (!peer.unread.empty() && peer.unread.front().number >= peer.shared->consumed());
      if (needs_frame || needs_reading) return HasLeft(rank);
    }
    return absl::OkStatus();
  }

  absl::Status HasLeft(int rank) const {
    const Peer& peer = peers_[rank];
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " has left; rank ", rank_, " still needs it for ",
        peer.expected.empty() ? ToString(header_.call)
                              : ToString(gathers_[peer.expected.front() - gathers_.popped()].expected)));
  }

  absl::Status TooLate(uint64_t number, const Tag& tag, absl::Duration waited) const {
    std::vector<std::string> whom;
    for (int rank = 0; rank < size(); ++rank) {
      const Peer& peer = peers_[rank];
      bool reads = !peer.unread.empty() && peer.unread.front().transfers <= number;
      reads |= !peer.waiting.empty() && peer.waiting.front().transfers <= number;
      for (const FrameStream& stream : peer.streams) {
        reads |= !stream.out().empty() && stream.out().front().transfer <= number;
      }
      if (!peer.expected.empty() && gathers_[peer.expected.front() - gathers_.popped()].transfers <= number) {
        const bool is_there = peer.shared != nullptr && peer.shared->HasFrame();
        if (!is_there) whom.push_back(absl::StrCat("rank ", rank, " to send"));
      } else if (reads) {
        whom.push_back(absl::StrCat("rank ", rank, " to receive"));
      }
    }
    return absl::DeadlineExceededError(absl::StrCat("rank ", rank_, " waited ", absl::FormatDuration(waited),
                                                    " for ", absl::StrJoin(whom, " and "), " (",
                                                    ToString(tag), ")"));
  }

  void TellAll(absl::StatusCode code, const std::string& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(failure_mutex_) {
    for (Peer& peer : peers_) {
      if (peer.control == nullptr) continue;
      SayFarewell(peer.control->fd(), code, message);
      if (peer.shared != nullptr) peer.shared->theirs().Ring();
    }
  }

  // Why a transfer with `rank` failed. Where its data connection is lost, the reason is on its control
  // connection, or will be soon.
  absl::Status Explain(int rank, const absl::Status& symptom) {
    if (!absl::IsUnavailable(symptom)) return symptom;
    ControlConnection& control = *peers_[rank].control;
    const absl::Time deadline = absl::Now() + kFarewellPatience;
    while (!control.left() && absl::Now() < deadline) {
      pollfd waiting = {control.fd(), POLLIN, 0};
      if (poll(&waiting, 1, PollTimeoutMs(deadline)) > 0) PSRING_RETURN_IF_ERROR(Hear(rank));
    }
    if (control.left()) return HasLeft(rank);
    return absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", symptom.message()));
  }

  // Written by one thread, read by any.
  static void Count(std::atomic<uint64_t>& total, uint64_t bytes) {
    total.store(total.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }

  const int rank_;
  const FileDescriptor wake_;
  std::optional<SharedArena> arena_;  // before peers_, who use it
  const MeshLayout layout_;
  std::vector<Peer> peers_;  // by rank; this rank's own is not used
  int shared_peers_ = 0;
  bool crowded_ = false;  // more ranks on this host than cores
  uint64_t naps_ = 0;

  FrameHeader header_;  // of the current call
  uint64_t call_hash_ = 0;
  Fifo<Transfers> transfers_;
  Fifo<Gather> gathers_;
  std::vector<std::byte> window_;   // what TCP delivers and is to be added
  std::vector<const void*> terms_;  // kept, for their memory
  std::vector<pollfd> polled_;
  absl::Status early_failure_;  // of a Send; Wait returns it
  std::atomic<uint64_t> sent_bytes_ = 0, received_bytes_ = 0;

  Mutex failure_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(failure_mutex_);
  bool relayed_ ABSL_GUARDED_BY(failure_mutex_) = false;  // the failure is what a peer said
  std::atomic<bool> aborted_ = false;
};

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

absl::StatusOr<std::unique_ptr<Transport>> MakeMeshTransport(Rendezvous& rendezvous,
                                                             const MeshOptions& options) {
  if (options.sockets_per_peer < 1 || options.sockets_per_peer > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("1 to 64 sockets may lead to a peer, not ", options.sockets_per_peer));
  }
  const int size = rendezvous.options().world_size;
  PSRING_ASSIGN_OR_RETURN(std::vector<PeerConnections> connections, ConnectMesh(rendezvous, options));
  bool shares = false;
  for (const PeerConnections& peer : connections) {
    if (options.socket_buffer_bytes > 0)
      PSRING_RETURN_IF_ERROR(SetBuffers(peer, options.socket_buffer_bytes));
    shares |= peer.unix_socket.valid();
  }
  PSRING_ASSIGN_OR_RETURN(const MeshLayout layout, AgreeOnLayout(rendezvous, connections));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemError("cannot open an eventfd");
  std::optional<SharedArena> arena;
  if (shares) {
    PSRING_ASSIGN_OR_RETURN(arena, SharedArena::Create(size, wake.get()));
  }
  auto mesh = std::make_unique<MeshTransport>(rendezvous.options().rank, size, std::move(wake),
                                              std::move(arena), layout);
  PSRING_RETURN_IF_ERROR(
      mesh->Connect(std::move(connections), options, absl::Now() + rendezvous.options().timeout));
  return mesh;
}

}  // namespace psring
