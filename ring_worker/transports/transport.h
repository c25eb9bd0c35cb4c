// Moves memory between ranks. Implementations: the mesh (shared memory between ranks of one host, TCP between
// hosts) and CUDA IPC (between GPUs of one host).
//
// A transfer is identified by its peer and tag; both sides use the same tag. Sends and receives are started
// first and awaited together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/device/device.h"
#include "common/kernels/reduce.h"
#include "common/measure/trace.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

class LinkShaper;

// Identifies a transfer: the group's call number, the schedule's round, the segment of that round.
struct Tag {
  uint32_t call = 0;
  uint32_t round = 0;
  uint32_t segment = 0;
  bool operator==(const Tag&) const = default;
};

std::string ToString(const Tag& tag);  // "call 3, round 0, segment 12"

// What all ranks must agree on. It is sent with every transfer, so that ranks whose calls differ get an error
// that names both calls instead of waiting for each other.
struct CallInfo {
  uint32_t number = 0;  // Tag::call of its transfers
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint16_t root = 0;
  uint64_t elements = 0;
  char operation[40] = {};  // "ring all_reduce"; zero-filled
  bool operator==(const CallInfo&) const = default;
};
static_assert(sizeof(CallInfo) == 56);
// "call 3, ring all_reduce (sum) of 1000 float32"
std::string ToString(const CallInfo& call);

// The peer replies to a transfer with values that replace what was sent: in `round` of the same call and
// segment, with as many elements. Until then nothing else uses the memory `to` at this rank, so the transport
// may let the peer write there. `to` null: no reply.
struct ReplyPlace {
  uint32_t round = 0;
  std::byte* to = nullptr;
};

struct SendTraits {
  bool copy = false;
  ReplyPlace reply = {};
};

// Sizes that suit a transport.
struct TransportTraits {
  size_t segment_bytes;      // the fastest size of a transfer
  size_t max_segment_bytes;  // upper limit of a single transfer
  int depth;                 // segments in flight before the first one is awaited
};

// Constant properties of a transport.
struct TransportInfo {
  std::string name;                // "shm", "tcp", "shm+tcp", "cuda_ipc"
  std::vector<std::string> wires;  // of this rank's payload (common/measure/wires.h); none without peers
  int rank = 0;
  int size = 1;
  // Ranks of a host that share memory, if they are as many and consecutive on every host; otherwise 0.
  int ranks_per_node = 1;
  TransportTraits traits;
};

// Everything except Abort is called by one thread at a time. In the steady state no function allocates.
class Transport {
 public:
  explicit Transport(TransportInfo info) : info_(std::move(info)) {}
  virtual ~Transport() = default;

  const TransportInfo& info() const { return info_; }

  // Later transfers belong to `call`. All transfers of earlier calls must be complete.
  virtual void BeginCall(const CallInfo& call) = 0;

  // Start a transfer and return. The memory must not change until Wait(tag) has returned; with `copy`, until
  // the next Wait of any tag. Between two ranks, sends and the peer's receives must be started in the same
  // order. Transfers of one tag are started one after the other.
  virtual void Send(int peer, Tag tag, ConstSpan from, const SendTraits& traits = {}) = 0;
  // to[i] = the sources' values combined with `op` from left to right: `sources` are peers, each of which
  // sends to.count elements, and possibly this rank, whose values are at `own` (null if it is not a source).
  // `own` equals `to.data` or does not overlap it. The bits do not depend on the order of arrival. `replies`:
  // to[] is this rank's reply to all sources, so the transport may write it to their ReplyPlaces at once.
  virtual void Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources,
                       bool replies = false) = 0;

  // Returns when every transfer of this rank with `tag` is complete: what was sent has been read (or copied),
  // and what was to be received is in place. On a GPU (DeviceWork) "complete" means complete in the order of
  // the call's stream. Errors name the peer: it closed its connection, its call differs, it gave up, or it
  // sent nothing before the deadline. After an error the transport is aborted.
  virtual absl::Status Wait(Tag tag, absl::Duration timeout) = 0;

  // Whether later copies between ranks, which add nothing, write past the caches (cpu::CopyPastCaches). Which
  // is faster depends on the machine. A hint.
  void PassCaches(bool passes) { passes_caches_ = passes; }

  // See MemoryRegistration.
  virtual absl::Status Register(const Buffer& buffer) = 0;
  virtual void Unregister(const Buffer& buffer) = 0;
  // Whether peers read `data` in place. False also if the transport does not know.
  virtual bool IsRegistered(const void* /*data*/) const { return false; }

  // From any thread: every pending and later wait returns `why`, and the peers are notified. The first error
  // is kept.
  virtual void Abort(absl::Status why) = 0;

  // Payload bytes so far; headers are not counted. From any thread.
  Traffic traffic() const {
    return {sent_bytes_.load(std::memory_order_relaxed), received_bytes_.load(std::memory_order_relaxed)};
  }

 protected:
  // On the thread that calls the transport.
  void CountSent(uint64_t bytes) { Add(sent_bytes_, bytes); }
  void CountReceived(uint64_t bytes) { Add(received_bytes_, bytes); }
  bool passes_caches() const { return passes_caches_; }

 private:
  // One thread writes and any thread reads, so a read-modify-write operation is not needed.
  static void Add(std::atomic<uint64_t>& total, uint64_t bytes) {
    total.store(total.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }

  const TransportInfo info_;
  bool passes_caches_ = false;
  std::atomic<uint64_t> sent_bytes_ = 0, received_bytes_ = 0;
};

struct MeshOptions {
  // auto: shared memory between ranks of one host, TCP between hosts; shm: shared memory only, an error if
  // the ranks are on several hosts; tcp
  std::string transport = "auto";
  std::string bind_host = "127.0.0.1";  // an address of this machine that the other ranks can reach
  // Above 0 and with auto: only ranks r with equal r / ranks_per_node share memory, as if each such set were
  // on its own host.
  int ranks_per_node = 0;
  LinkShaper* shaper =
      nullptr;  // limits the rate of payload over TCP; null: no limit. Outlives the transport
  // The peers to connect before MakeMeshTransport returns; it connects others at the first transfer between
  // the two. If a names b, b names a. Null: none. `schedule`: what determines them; equal on all ranks.
  std::function<std::vector<int>(const TransportInfo& info)> first_peers = nullptr;
  std::string schedule = "";
};
// Collective: listens on a port that the system chooses, and publishes the address through the rendezvous,
// which must outlive the transport. Connections without the job's secret are rejected. Errors name the ranks
// that did not connect.
absl::StatusOr<std::unique_ptr<Transport>> MakeMeshTransport(Rendezvous& rendezvous,
                                                             const MeshOptions& options);

}  // namespace psring
