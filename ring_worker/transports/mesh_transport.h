// The mesh (MakeMeshTransport): a rank's peers and its transfers in progress. Used only by mesh*.cc.
//
// Two ranks are connected before their first transfer (mesh_connections.h); transfers that are started
// earlier wait. *Control* connections carry a rank's reason to end, and are polled whenever a rank sleeps, so
// that an error is not queued after payload that nobody reads. A rank that ends because of a peer's error
// passes it on to its own peers, so that it reaches ranks that are not connected with the one at fault.
// Payload uses shared memory between ranks of one host (shared_link.h), otherwise TCP (frame_stream.h).
//
// Bytes move inside Send and Wait, on the caller's thread. If nothing can move, it
// spins briefly, then sleeps: on a futex (its bell) if it waits only for ranks of this host, otherwise in
// poll(), which the bell also ends. Frames of one peer arrive in the order in which receives are started; a
// sum's terms are added in the order listed, independent of their arrival.
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "ring_worker/transports/control_connection.h"
#include "ring_worker/transports/fifo.h"
#include "ring_worker/transports/frame_stream.h"
#include "ring_worker/transports/mesh_connections.h"
#include "ring_worker/transports/shared_link.h"
#include "ring_worker/transports/transport.h"

namespace psring {

class MeshTransport final : public Transport {
 public:
  // `names`: by rank, the number that messages give it. `waker`: a socket that wakes this rank from poll();
  // `wake`: its other end. `arena`: if memory is shared with any rank.
  MeshTransport(const TransportInfo& info, std::vector<int> names, FileDescriptor wake, FileDescriptor waker,
                std::optional<SharedArena> arena, std::unique_ptr<MeshConnections> connections);
  ~MeshTransport() override;

  // Returns when these peers are connected.
  absl::Status ConnectTo(const std::vector<int>& peers, absl::Duration timeout);

  void BeginCall(const CallInfo& call) override;
  void Send(int to, Tag tag, ConstSpan from, const SendTraits& traits) override;
  void Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources,
               bool replies) override;
  absl::Status Wait(Tag tag, absl::Duration timeout) override;
  absl::Status Register(const Buffer& buffer) override;
  bool IsRegistered(const void* data) const override;
  void Unregister(const Buffer& buffer) override;
  void Abort(absl::Status why) override;

 private:
  int size() const { return static_cast<int>(peers_.size()); }

  // All transfers of one tag.
  struct Transfers {
    Tag tag;
    int unfinished = 0;
  };

  // A receive: sources are applied from left to right.
  struct Gather {
    FrameHeader expected;
    uint64_t transfers = 0;  // number of its Transfers in transfers_
    Span to;
    ReduceOp op = ReduceOp::kSum;
    const std::byte* own = nullptr;
    absl::InlinedVector<int, 16> sources;
    size_t next = 0;          // sources before this index are in `to`
    bool all_shared = false;  // every peer's frame can be read in place: one pass when all have arrived
    bool replies = false;
    bool complete = false;
    std::vector<std::byte> own_copy;
  };

  // A frame for which there is no space yet. UnreadFrame: one that the peer reads in place.
  struct WaitingFrame {
    FrameHeader header;
    const std::byte* payload = nullptr;
    uint64_t transfers = 0;
    SendTraits traits;
    std::vector<std::byte> kept;  // a copy of the payload if the caller's memory may change
  };
  struct UnreadFrame {
    uint64_t number = 0;
    uint64_t transfers = 0;
  };

  struct Peer {
    bool shares = false;                         // memory
    std::unique_ptr<ControlConnection> control;  // null: not connected yet
    // Either
    std::unique_ptr<SharedLink> shared;  // null: not connected yet
    Fifo<WaitingFrame> waiting;
    Fifo<UnreadFrame> unread;
    // or
    std::optional<FrameStream> stream;

    Fifo<uint64_t> expected;  // gathers that still need a frame from this peer
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

  // The values that source i is combined with; null: it is the first.
  static const std::byte* BaseOf(const Gather& gather, size_t i) {
    if (i == 0) return nullptr;
    return i == 1 && gather.next == 1 ? gather.own : static_cast<const std::byte*>(gather.to.data);
  }

  // A connection, as other threads see it.
  struct Contact {
    int rank;
    MemberSocket* control;
    SharedLink* shared = nullptr;
  };

  // mesh.cc
  // Starts to connect a rank at its first use.
  Peer& PeerOf(int rank) { return peers_[rank] != nullptr ? *peers_[rank] : Use(rank, /*wanted=*/true); }
  Peer& Use(int rank, bool wanted);
  // On a thread of connections_.
  void OnConnected(int rank, absl::StatusOr<PeerConnections> connections);
  void OnGivenUp(MemberSocket& control, const absl::Status& why);
  // Takes connections that have been made. False: there are none.
  absl::StatusOr<bool> TakeConnected();
  absl::Status Attach(int rank, PeerConnections from);
  absl::Status NotConnected(absl::Duration waited) const;
  // After giving up: returns when no peer writes into this rank's memory any more.
  void AwaitReplies();
  // Counts one more transfer of the tag; returns the number of its Transfers.
  uint64_t Open(const Tag& tag);
  void Finish(uint64_t number) { --transfers_[number - transfers_.popped()].unfinished; }
  bool Done(uint64_t number) const {
    return number < transfers_.popped() || transfers_[number - transfers_.popped()].unfinished == 0;
  }
  absl::Status failure() {
    MutexLock lock(mutex_);
    return failure_;
  }
  // Sends it to all peers, also to those that connect later. The last notice once: later calls have no
  // effect.
  void NotifyPeers(const Notice& notice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What peers get as the reason.
  std::string GaveUp(absl::string_view why) const;
  // Ends the caller's sleep.
  void WakeSelf();

  // mesh_progress.cc: moving data. Moves what can be moved now. True if anything moved.
  absl::StatusOr<bool> Turn();
  bool SendShared(Peer& peer, const FrameHeader& header, const std::byte* payload, const SendTraits& traits,
                  uint64_t transfers);
  bool TurnShared(Peer& peer);
  // Applies the frames that are in shared memory. True if there were any.
  absl::StatusOr<bool> TakeShared(Gather& gather, uint64_t number);
  // Combines terms_ into gather.to, and into the places of the replies.
  void Combine(const Gather& gather);
  // Adds our own values when their position is reached, and completes the gather after the last source.
  void Advance(Gather& gather);
  bool MayRead(int rank, const FrameStream& stream) const {
    return stream.may_read() && WantsRead(rank, stream);
  }
  // The first frame is the next one from this peer, and its position in the sum is reached.
  bool WantsRead(int rank, const FrameStream& stream) const {
    if (stream.in().empty()) return false;
    const Gather& gather = gathers_[stream.in().front().gather - gathers_.popped()];
    return gather.sources[gather.next] == rank;
  }
  absl::Status Write(int rank, FrameStream& stream);
  absl::Status Read(int rank, FrameStream& stream);

  // mesh_progress.cc: waiting, and errors that name the peer.
  absl::Status Progress(uint64_t number, absl::Duration timeout);
  // Sleeps until something may be able to move, a control message arrives, or `left` is over.
  absl::Status SleepUntilProgress(absl::Duration left, uint64_t number);
  // Until something has arrived or can be sent, at most `longest`. Not `payload`: only control messages, and
  // new connections.
  absl::Status Poll(absl::Duration longest, bool payload = true);
  absl::Status ReceiveControl(int rank);
  // An error if a peer of this host has left, and this rank still needs its frame or its read. What it sent
  // before is still in its memory, which this rank maps.
  absl::Status CheckDepartures();
  absl::Status HasLeft(int rank) const;
  // Why a transfer with `rank` failed. If its data connection is lost, the reason is on its control
  // connection, or arrives soon.
  absl::Status Explain(int rank, const absl::Status& symptom);

  // mesh_silence.cc: the peer that does not respond.
  struct Awaited {
    std::vector<int> ranks;
    std::string text;  // "rank 2 to send and rank 3 to receive"
  };
  Awaited WhomAwaited(uint64_t number) const;
  // Called when this rank's deadline has passed, or a peer has waited too long. All ranks that respond tell
  // their peers for whom they wait, so that the error names the rank that does not, and not one that waits
  // for it. A rank whose awaited peers respond waits for the error of one of them. Takes up to 4 s.
  absl::Status GiveUpWaiting(uint64_t number, const Tag& tag, absl::Duration waited, absl::Duration timeout);
  // Those of `ranks` that have not responded.
  std::vector<int> Silent(const std::vector<int>& ranks) const;
  // For whom a peer waits that has responded; otherwise -1.
  int WaitsFor(int rank) const {
    const Peer* const peer = peers_[rank].get();
    return peer != nullptr && peer->control != nullptr ? peer->control->waits_for() : -1;
  }

  const int rank_;
  const std::vector<int> names_;  // by rank, for messages
  const FileDescriptor wake_, waker_;
  std::optional<SharedArena> arena_;          // declared before peers_, which use it
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: not used yet
  std::vector<int> used_;                     // the others, in order
  int shared_peers_ = 0, tcp_peers_ = 0;      // of them
  int unconnected_ = 0;                       // of them
  std::vector<SharedRegion> registered_;
  bool oversubscribed_ = false;  // more ranks than cores of this process
  uint64_t futex_waits_ = 0;

  FrameHeader header_;  // of the current call
  uint64_t call_hash_ = 0;
  Fifo<Transfers> transfers_;
  Fifo<Gather> gathers_;
  std::vector<std::byte> window_;   // received over TCP, to be added
  std::vector<const void*> terms_;  // a member to keep its memory, as are the next two
  std::vector<std::byte*> places_;
  std::vector<std::byte> block_;
  std::vector<pollfd> polled_;
  absl::Status early_failure_;  // of a Send; Wait returns it
  bool gives_up_ = false;       // this rank's deadline has passed, or that of a peer

  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool relayed_ ABSL_GUARDED_BY(mutex_) = false;  // the failure came from a peer
  std::vector<Contact> contacts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Notice> sent_notices_ ABSL_GUARDED_BY(mutex_);  // to all peers
  std::vector<std::pair<int, absl::StatusOr<PeerConnections>>> connected_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_connected_ = false;  // connected_ is not empty
  std::atomic<bool> aborted_ = false;
  std::unique_ptr<MeshConnections> connections_;  // last: its threads use the members above
};

}  // namespace psring
