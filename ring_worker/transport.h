// Moves slices of memory between ranks. Implementations: in-process (threads as ranks, for tests and for
// several devices in one process) and TCP.
//
// A transfer is named by its peer and tag; each side names it the same. Sends and receives are started, then
// awaited together. A segment's tag is used once per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device.h"
#include "common/rendezvous.h"
#include "common/trace.h"

namespace psring {

enum class Combine : uint8_t {
  kCopy,
  kAdd,  // float32: what arrives is added to what stands there
};

// Which transfer: the group's call number, the schedule's round, the segment of that round.
struct Tag {
  uint32_t call = 0;
  uint32_t round = 0;
  uint32_t segment = 0;
  auto operator<=>(const Tag&) const = default;
};

std::string ToString(const Tag& tag);  // "call 3, round 0, segment 12"

// What all ranks must agree on. It travels with every transfer, so that ranks whose calls differ are told so
// by name, instead of waiting for each other.
struct CallInfo {
  uint32_t number = 0;    // Tag::call of its transfers
  std::string operation;  // "ring all-reduce"; the first 24 characters count
  uint64_t elements = 0;
  bool operator==(const CallInfo&) const = default;
};
std::string ToString(const CallInfo& call);  // "call 3, ring all-reduce of 1000 elements"

// One thread at a time calls everything but Abort.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string name() const = 0;  // "tcp", "in_process"
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The transfers that follow belong to `call`. No transfer of an earlier call may be unfinished.
  virtual void BeginCall(const CallInfo& call) = 0;

  // Start a transfer and return. The memory must stay as it is until Wait(tag) has returned. Between two
  // ranks, sends and the peer's receives must be started in the same order. Receives of one tag into the same
  // memory apply in the order in which they were started, so the bits of a sum do not depend on who is fast.
  virtual void Send(int peer, Tag tag, ConstSpan from) = 0;
  virtual void Receive(int peer, Tag tag, Span to, Combine combine) = 0;

  // Returns when every transfer of this rank with `tag` is complete: what was sent has been read (or copied
  // away), what was to be received stands in its place. Errors name the peer: it closed its connection, its
  // call differs, it gave up, or it was still silent at the deadline. After an error the transport is
  // aborted.
  virtual absl::Status Wait(Tag tag, absl::Time deadline) = 0;

  // From any thread: every waiting call and every later one returns `why`; peers learn of it. The first error
  // stays.
  virtual void Abort(absl::Status why) = 0;

  // Payload bytes so far; headers are not counted.
  virtual Traffic traffic() const = 0;
};

// `ranks` connected transports in one process.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int ranks);

struct GroupOptions;
// Every rank calls it: listens on a port that the system chooses, publishes the address through the
// rendezvous and connects to every other rank. A connection that does not show this job's token is dropped:
// random bytes do no harm.
absl::StatusOr<std::unique_ptr<Transport>> MakeMeshTransport(Rendezvous& rendezvous,
                                                             const GroupOptions& options);

}  // namespace psring
