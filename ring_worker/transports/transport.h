// Moves slices of memory between ranks. Implementations: in-process (threads as ranks, for tests), the mesh
// (shared memory between ranks of one host, TCP between hosts) and CUDA IPC (between GPUs of one host).
//
// A transfer is named by its peer and tag; each side names it the same. Sends and receives are started, then
// awaited together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "common/reduce/reduce.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

class LinkShaper;

// Which transfers: the group's call number, the schedule's round, the segment of that round.
struct Tag {
  uint32_t call = 0;
  uint32_t round = 0;
  uint32_t segment = 0;
  bool operator==(const Tag&) const = default;
};

std::string ToString(const Tag& tag);  // "call 3, round 0, segment 12"

// What all ranks must agree on. It travels with every transfer, so that ranks whose calls differ are told so
// by name, instead of waiting for each other.
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

// Sizes that suit a transport.
struct TransportTraits {
  size_t segment_bytes;       // in which slices move best
  size_t most_segment_bytes;  // no single transfer may be larger
  int depth;                  // segments whose transfers are under way before the first one's are awaited
};

// One thread at a time calls everything but Abort. In the steady state nothing here allocates.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string name() const = 0;  // "shm", "tcp", "shm+tcp", "in_process"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual TransportTraits traits() const = 0;
  // Of this host: the ranks among which memory is shared, where that is the same number everywhere; else 1.
  virtual int ranks_per_node() const = 0;

  // The transfers that follow belong to `call`. No transfer of an earlier call may be unfinished.
  virtual void BeginCall(const CallInfo& call) = 0;

  // Start a transfer and return. The memory must stay as it is until Wait(tag) has returned; with `copy` only
  // until the next Wait of any tag. Between two ranks, sends and the peer's receives must be started in the
  // same order. Transfers of one tag are started one after the other.
  virtual void Send(int peer, Tag tag, ConstSpan from, bool copy = false) = 0;
  // to[i] = the sources' values combined with `op` from left to right: `sources` are peers, each of which
  // sends as many elements, and possibly this rank itself, which stands for the values at `own` (null where
  // it is not among them). `own` is `to.data` or does not overlap with it. The bits do not depend on who is
  // fast.
  virtual void Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources) = 0;

  // Returns when every transfer of this rank with `tag` is complete: what was sent has been read (or copied
  // away), what was to be received stands in its place. Errors name the peer: it closed its connection, its
  // call differs, it gave up, or it was still silent at the deadline. After an error the transport is
  // aborted.
  virtual absl::Status Wait(Tag tag, absl::Duration timeout) = 0;

  // See ProcessGroup::Register.
  virtual absl::Status Register(const Buffer& buffer) = 0;
  virtual void Unregister(const Buffer& buffer) = 0;

  // Where the memory of transfers is: the host's, unless these say otherwise. On a GPU "complete" means
  // complete in the order of the stream that the call was put on: what that stream does later sees it.
  virtual bool on_gpu() const { return false; }
  // Does `call`, all of one call, when `stream` gets there.
  virtual void Enqueue(Stream& stream, std::function<absl::Status()> call) { stream.Run(std::move(call)); }
  // Within this rank's memory, in the order of its transfers. What fails is said by a later Wait, or in the
  // stream.
  virtual void Copy(void* to, const void* from, size_t bytes);
  virtual void Scale(Span data, float factor);
  // Memory that peers may read, for the group to work in.
  virtual absl::StatusOr<Buffer> AllocateScratch(size_t bytes);

  // From any thread: every waiting call and every later one returns `why`; peers learn of it. The first error
  // stays.
  virtual void Abort(absl::Status why) = 0;

  // Payload bytes so far; headers are not counted.
  virtual Traffic traffic() const = 0;
};

// `ranks` connected transports in one process.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int ranks);

struct MeshOptions {
  // auto: shared memory where two ranks stand on one host, TCP elsewhere; shm: an error where they do not;
  // tcp
  std::string transport = "auto";
  std::string bind_host = "127.0.0.1";  // an address of this machine that the other ranks can reach
  int sockets_per_peer = 1;             // TCP connections that carry payload
  int socket_buffer_bytes = 0;          // 0: the kernel chooses, and adapts
  // Above 0 and with auto: memory is shared only among so many ranks with consecutive numbers, as if each
  // such lot had a host of its own.
  int ranks_per_node = 0;
  LinkShaper* shaper = nullptr;  // through which payload goes over TCP; null: none. Outlives the transport
};
// Every rank calls it: listens on a port that the system chooses, publishes the address through the
// rendezvous and connects to every other rank. A connection that does not show this job's token is dropped:
// random bytes do no harm.
absl::StatusOr<std::unique_ptr<Transport>> MakeMeshTransport(Rendezvous& rendezvous,
                                                             const MeshOptions& options);

}  // namespace psring
