// The mesh (MakeMeshTransport), for mesh*.cc alone: what a rank keeps of its peers and of transfers under
// way.
//
// Every rank is connected with every other. *Control* connections carry at most one farewell each, and are
// watched whenever a rank sleeps: bad news must not stand in line behind payload that nobody reads. Payload
// goes through shared memory between ranks of one host (shared_link.h), else over TCP (frame_stream.h).
//
// There are no threads: bytes move inside Send and Wait, on the caller's thread. Where nothing can move it
// spins for a moment, then sleeps: on its bell, a futex, where it waits for ranks of this host alone, else in
// poll(), which its bell ends too. Frames of one peer come in the order in which receives are started; a
// sum's terms are added in the order in which they were listed, whoever is fast.
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "ring_worker/transports/farewell.h"
#include "ring_worker/transports/fifo.h"
#include "ring_worker/transports/frame_stream.h"
#include "ring_worker/transports/mesh_connections.h"
#include "ring_worker/transports/mesh_layout.h"
#include "ring_worker/transports/shared_link.h"
#include "ring_worker/transports/transport.h"

namespace psring {

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
                       absl::Time deadline);
  ~MeshTransport() override;

  std::string name() const override {
    return shared_peers_ == 0 ? "tcp" : shared_peers_ == size() - 1 ? "shm" : "shm+tcp";
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  int ranks_per_node() const override { return layout_.ranks_per_node; }
  TransportTraits traits() const override { return TraitsOf(layout_); }

  void BeginCall(const CallInfo& call) override;
  void Send(int to, Tag tag, ConstSpan from, bool copy) override;
  void Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources) override;
  absl::Status Wait(Tag tag, absl::Duration timeout) override;
  absl::Status Register(const Buffer& buffer) override;
  void Unregister(const Buffer& buffer) override;
  void Abort(absl::Status why) override;
  Traffic traffic() const override {
    return {sent_bytes_.load(std::memory_order_relaxed), received_bytes_.load(std::memory_order_relaxed)};
  }

 private:
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

  // mesh.cc
  // The number of the tag's transfers, one more of which has been started.
  uint64_t Open(const Tag& tag);
  void Finish(uint64_t number) { --transfers_[number - transfers_.popped()].unfinished; }
  bool Done(uint64_t number) const {
    return number < transfers_.popped() || transfers_[number - transfers_.popped()].unfinished == 0;
  }
  absl::Status failure() {
    MutexLock lock(failure_mutex_);
    return failure_;
  }
  void TellAll(absl::StatusCode code, const std::string& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(failure_mutex_);
  // Written by one thread, read by any.
  static void Count(std::atomic<uint64_t>& total, uint64_t bytes) {
    total.store(total.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }

  // mesh_turn.cc: what moves.
  // Moves what can be moved at once. True if that was anything.
  absl::StatusOr<bool> Turn();
  bool SendShared(Peer& peer, const FrameHeader& header, const std::byte* payload, bool copy,
                  uint64_t transfers);
  bool TurnShared(Peer& peer);
  // Applies what is there of frames in shared memory. True if that was anything.
  absl::StatusOr<bool> TakeShared(Gather& gather, uint64_t number);
  // Our own values, where it is their turn; then the gather may be complete.
  void Advance(Gather& gather);
  bool MayRead(int rank, const FrameStream& stream) const {
    return stream.may_read() && WantsRead(rank, stream);
  }
  // The first frame is this peer's next one, and its values' turn has come.
  bool WantsRead(int rank, const FrameStream& stream) const {
    if (stream.in().empty()) return false;
    const Gather& gather = gathers_[stream.in().front().gather - gathers_.popped()];
    return gather.sources[gather.next] == rank;
  }
  absl::Status Write(int rank, FrameStream& stream);
  absl::Status Read(int rank, FrameStream& stream);

  // mesh_wait.cc: what is waited for, and who is to blame.
  absl::Status Progress(uint64_t number, const Tag& tag, absl::Duration timeout);
  // Until something may be able to move, somebody has spoken, or `left` is over.
  absl::Status SleepUntilNews(absl::Duration left, uint64_t number);
  absl::Status Poll(absl::Duration longest);
  absl::Status Hear(int rank);
  // A peer of this host that has left, but whose frame or reading is still needed. What it sent before it
  // left is still in its memory, which we map.
  absl::Status MissThoseWhoLeft();
  absl::Status HasLeft(int rank) const;
  absl::Status TooLate(uint64_t number, const Tag& tag, absl::Duration waited) const;
  // Why a transfer with `rank` failed. Where its data connection is lost, the reason is on its control
  // connection, or will be soon.
  absl::Status Explain(int rank, const absl::Status& symptom);

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

}  // namespace psring
