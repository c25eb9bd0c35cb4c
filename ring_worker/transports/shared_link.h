// Frames between two ranks of one host, through memory that both map. Nothing here waits, and nothing enters
// the kernel but a peer that sleeps being woken.
//
// Every rank owns an *arena*: a *bell*, its recent calls (for error messages), and a *channel* to each peer.
// A channel is a ring of entries, one a frame, and some *slots*. A payload that stands in registered memory
// is read in place by the receiver, who says when it is done; any other is copied into a slot first, small
// enough to stay in the cache until the receiver has taken it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/shared_memory.h"
#include "common/device/device.h"
#include "common/net/unix_socket.h"
#include "ring_worker/transports/frame.h"

namespace psring {

inline constexpr size_t kSlotBytes = 128 << 10;

// Payloads below this are copied into a slot even where they could be read in place: that spares the sender
// the wait for the receiver.
inline constexpr size_t kInPlaceBytes = 16 << 10;

// How a rank that sleeps is woken.
enum class Sleep : uint32_t { kAwake, kOnFutex, kInPoll };

// The memory that one rank offers to those of its host.
class SharedArena {
 public:
  // This rank's own. `wake_fd` is an eventfd that ends its poll().
  static absl::StatusOr<SharedArena> Create(int ranks, int wake_fd);
  // A peer's, from what Offer sent over `socket`.
  static absl::StatusOr<SharedArena> Adopt(int ranks, const UnixSocket& socket, absl::Time deadline);
  absl::Status Offer(const UnixSocket& socket) const;

  // Wakes the arena's owner if it sleeps. What was stored before is seen by it.
  void Ring();
  std::atomic<uint32_t>& bell() { return header().bell; }

  // The owner's recent calls, so that a peer can say what it is in.
  void NoteCall(const CallInfo& call);
  CallInfo RecentCall(uint32_t number) const;

  struct Entry {
    std::atomic<uint64_t> number;  // n + 1 once the n-th frame is here
    uint64_t call_hash;
    uint64_t bytes;
    uint64_t offset;  // in the slot or the region
    uint32_t call, round, segment;
    int32_t region;  // -1 - i: in slot i
  };
  static_assert(sizeof(Entry) == 48);
  static constexpr size_t kEntries = 64;
  // Twice the segments that a group keeps on their way: a peer is at most so far behind.
  static constexpr size_t kSlots = 12;

  struct Channel {
    struct alignas(64) Cell {
      Entry entry;
    };
    Cell cells[kEntries];
    alignas(64) std::atomic<uint64_t> consumed;  // frames that the receiver is done with
    alignas(4096) std::byte slots[kSlots][kSlotBytes];
  };
  Channel& channel(int peer);

 private:
  struct Header {
    alignas(64) std::atomic<uint32_t> bell;
    alignas(64) std::atomic<uint64_t> calls[4][sizeof(CallInfo) / 8];
  };
  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }

  SharedMemory memory_;
  int wake_fd_ = -1;
  FileDescriptor adopted_wake_;
};

// One thread at a time.
class SharedLink {
 public:
  // `mine` outlives the link; `socket` leads to the peer.
  // `touch`: all slots get their pages when the first one is used, not each when it is.
  SharedLink(int rank, int peer, SharedArena& mine, SharedArena theirs, UnixSocket socket, bool touch);

  // --- sending ---
  // Starts the frame; false: no room now, call again. On return either the payload has been taken (`taken`),
  // or the receiver reads it in place until consumed() has passed the frame's number, sent() - 1.
  bool TrySend(const FrameHeader& header, uint64_t call_hash, const std::byte* payload, bool copy,
               bool& taken);
  uint64_t sent() const { return sent_; }
  uint64_t consumed() const { return out_.consumed.load(); }
  // Memory that the peer may read in place from now on.
  absl::Status Register(const Buffer& buffer);
  void Unregister(const Buffer& buffer);

  // --- receiving ---
  bool HasFrame() const {
    return in_.cells[received_ % SharedArena::kEntries].entry.number.load() == received_ + 1;
  }
  // Where the first frame's payload stands. Needs HasFrame(). FailedPrecondition: the peer's call is another.
  absl::StatusOr<const std::byte*> Payload(const FrameHeader& expected, uint64_t call_hash);
  // Done with it: the peer may write there again.
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

  absl::Status TakeRegions(int32_t wanted);
  void TouchSlots(SharedArena::Channel& channel, size_t bytes, size_t& touched);

  const int rank_, peer_;
  const bool touch_;
  SharedArena& mine_;
  SharedArena theirs_;
  const UnixSocket socket_;
  SharedArena::Channel& out_;
  SharedArena::Channel& in_;
  std::vector<Region> regions_;  // ours that the peer knows
  int32_t next_region_ = 0;
  std::vector<PeerRegion> peer_regions_;
  uint64_t sent_ = 0, received_ = 0;
  size_t touched_out_ = 0, touched_in_ = 0;        // of each slot: no more page faults there
  uint64_t slot_frame_[SharedArena::kSlots] = {};  // 1 + the frame that last used it
};

}  // namespace psring
