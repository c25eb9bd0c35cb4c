// Frames between two ranks of one host, through memory that both map. Nothing here waits, and the kernel is
// entered only to wake a sleeping peer.
//
// Every rank owns an *arena*: a *bell* (a futex), its recent calls (for error messages), and a *channel* to
// each peer. A channel is a ring of entries, one per frame, and some *slots*. The receiver reads a payload in
// registered memory in place and acknowledges it; any other payload is copied into a slot first, small enough
// to stay in the cache until the receiver has read it. If a frame says where its reply belongs, in registered
// memory, the peer writes the reply there itself, and the receiver of the reply moves nothing.
//
// Everything that a peer writes is checked before it is used as an index. Not protected: payload, which the
// peer may change while it is added.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/base/shared_memory.h"
#include "common/net/unix_socket.h"
#include "ring_worker/transports/fifo.h"
#include "ring_worker/transports/frame.h"

namespace psring {

inline constexpr size_t kSlotBytes = 128 << 10;

// Bytes. Smaller payloads are copied into a slot even if they could be read in place, so that the sender does
// not wait for the receiver.
inline constexpr size_t kInPlaceBytes = 16 << 10;

// How a rank waits, which determines how to wake it.
enum class Sleep : uint32_t { kAwake, kOnFutex, kInPoll };

// Wakes a rank that polls the other end of the socket `fd`. Never waits or raises a signal, even if a peer
// has filled the socket, or sent another kind of file instead of one.
void WakeFromPoll(int fd);
// Empties the other end, before the rank looks for what woke it.
void ReadRings(int fd);

// The memory that one rank shares with the ranks of its host.
class SharedArena {
 public:
  // This rank's own. `wake_fd`: a socket whose other end it polls (WakeFromPoll).
  static absl::StatusOr<SharedArena> Create(int ranks, int wake_fd);
  // A peer's, received from its Offer over `socket`.
  static absl::StatusOr<SharedArena> Adopt(int ranks, const UnixSocket& socket, MonotonicTime deadline);
  absl::Status Offer(const UnixSocket& socket) const;

  // Wakes the arena's owner if it sleeps. The owner then sees everything stored before.
  void Ring();
  // Wakes the owner if it sleeps, to look at its control connections.
  void WakeForControl();
  std::atomic<uint32_t>& bell() { return header().bell; }
  // 1: the owner has given up, and no peer may write into its memory any more.
  std::atomic<uint32_t>& ended() { return header().ended; }

  // The owner's recent calls, for a peer's error messages.
  void NoteCall(const CallInfo& call);
  CallInfo RecentCall(uint32_t number) const;

  struct Entry {
    std::atomic<uint64_t> number;  // n + 1 once the n-th frame has been written
    uint64_t call_hash;
    uint64_t bytes;
    uint64_t offset;  // in the slot or the region
    uint32_t call, round, segment;
    int32_t region;         // -1 - i: in slot i; kInPlace: where the receiver wants it
    uint64_t reply_offset;  // where the sender wants the reply of reply_round: in reply_region
    int32_t reply_region;   // 1 + its number; 0: no reply, or into a slot
    uint32_t reply_round;
  };
  static_assert(sizeof(Entry) == 64);
  static constexpr int32_t kInPlace = INT32_MIN;
  static constexpr size_t kEntries = 64;
  // Twice the segments in flight of a group, which is the most that a peer can lag behind.
  static constexpr size_t kSlots = 12;

  struct Channel {
    struct alignas(64) Cell {
      Entry entry;
    };
    Cell cells[kEntries];
    alignas(64) std::atomic<uint64_t> consumed;  // frames that the receiver has finished with
    // 1 while the sender writes a reply into the receiver's memory, unless that has ended.
    alignas(64) std::atomic<uint32_t> writes_reply;
    alignas(4096) std::byte slots[kSlots][kSlotBytes];
  };
  Channel& channel(int peer);

 private:
  struct Header {
    alignas(64) std::atomic<uint32_t> bell;
    alignas(64) std::atomic<uint32_t> ended;
    alignas(64) std::atomic<uint64_t> calls[4][sizeof(CallInfo) / 8];
  };
  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }

  SharedMemory memory_;
  int wake_fd_ = -1;
  FileDescriptor adopted_wake_;
};

// Registered memory: see MemoryRegistration.
struct SharedRegion {
  int fd = -1;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// One thread at a time.
class SharedLink {
 public:
  // `mine` must outlive the link; `socket` is connected to the peer. `touch`: maps the pages of all slots
  // when the first one is used.
  SharedLink(int rank, int peer, SharedArena& mine, SharedArena theirs, UnixSocket socket, bool touch);

  // How messages name the two ranks, if not by their numbers here.
  void NameRanks(int rank, int peer) { rank_ = rank, peer_ = peer; }

  // --- sending ---
  // Starts the frame; false: no space now, call again. On return either the payload has been copied
  // (`taken`), or the receiver reads it in place until consumed() exceeds the frame's number, sent() - 1.
  bool TrySend(const FrameHeader& header, uint64_t call_hash, const std::byte* payload,
               const SendTraits& traits, bool& taken);
  uint64_t sent() const { return sent_; }
  uint64_t consumed() const { return out_.consumed.load(); }
  // The next frames belong to another call. `pass_caches`: how payload is copied from now on.
  void BeginCall(bool pass_caches);
  // Lets the peer read this memory in place from now on.
  absl::Status Register(const SharedRegion& region);
  void Unregister(const std::byte* data);

  // --- receiving ---
  bool HasFrame() const {
    return in_.cells[received_ % SharedArena::kEntries].entry.number.load() == received_ + 1;
  }
  // The first frame's payload; if it is a reply that the peer has written in place, the place. Needs
  // HasFrame(). FailedPrecondition: the peer's call differs. DataLoss: the frame names memory that does not
  // exist. Errors name the peer.
  absl::StatusOr<const std::byte*> Payload(const FrameHeader& expected, uint64_t call_hash);
  // Where the peer wants the reply to the first frame, if it is to be `header`'s bytes: the caller writes it
  // there at once, calls EndReply, and later sends the reply, which then copies nothing. Null: it says no
  // place, or has given up. Needs Payload().
  std::byte* FillPlace(const FrameHeader& header);
  void EndReply() { out_.writes_reply.store(0, std::memory_order_release); }
  // Whether the peer is writing into this rank's memory.
  bool PeerWritesReply() const { return in_.writes_reply.load() != 0; }
  // Releases the first frame: the peer may write there again.
  void Pop();

  SharedArena& theirs() { return theirs_; }

 private:
  struct Region {
    int32_t number;
    const std::byte* data;
    size_t bytes;
  };
  struct PeerRegion {
    int32_t number;
    SharedMemory memory;
  };

  // Where a reply belongs: this rank's memory or the peer's.
  struct Place {
    uint32_t round, segment;
    uint64_t bytes;
    std::byte* at;
    bool filled = false;
  };

  // Whether the peer's memory may be written now; then needs EndReply.
  bool BeginReply();
  const Region* FindRegion(const std::byte* payload, uint64_t bytes) const;
  // Removes the first of `places` if it is that of the frame.
  static std::optional<Place> TakePlace(Fifo<Place>& places, const FrameHeader& header);
  // Memory that the peer has registered.
  absl::StatusOr<std::byte*> InRegion(int32_t number, uint64_t offset, uint64_t bytes);
  absl::StatusOr<const SharedMemory*> RegionOf(int32_t number);
  absl::Status TakeRegion(MonotonicTime deadline);
  void TouchSlots(SharedArena::Channel& channel, size_t bytes, size_t& touched);

  int rank_, peer_;  // for messages
  const bool touch_;
  SharedArena& mine_;
  SharedArena theirs_;
  const UnixSocket socket_;
  SharedArena::Channel& out_;
  SharedArena::Channel& in_;
  std::vector<Region> regions_;  // known to the peer
  int32_t next_region_ = 0;
  std::vector<PeerRegion> peer_regions_;
  uint64_t sent_ = 0, received_ = 0;
  bool first_wants_reply_ = false;  // the first frame
  Fifo<Place> wanted_, promised_;   // of this call, in the order of the frames: by the peer, by this rank
  bool pass_caches_ = false;
  size_t touched_out_ = 0, touched_in_ = 0;        // bytes of each slot whose pages are mapped
  uint64_t slot_frame_[SharedArena::kSlots] = {};  // 1 + the frame that last used it
};

}  // namespace psring
