// Collectives over a fixed set of ranks; every rank makes the same calls in the same order.
//
// Return means enqueued: work put on `stream` afterwards sees the result; errors surface at the stream's
// Synchronize or at an event recorded behind the call, and name the peer.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device.h"
#include "common/trace.h"
#include "ring_worker/schedule.h"
#include "ring_worker/transport.h"

namespace psring {

enum class ReduceOp : uint8_t { kSum };

// One thread at a time calls everything but Abort.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string backend() const = 0;    // "native"
  virtual std::string algorithm() const = 0;  // of AllReduce: "ring"
  virtual std::string transport() const = 0;  // "tcp"

  // `in` and `out` have one count; they may be the same memory.
  virtual absl::Status AllReduce(ConstSpan in, Span out, ReduceOp op, Stream& stream) = 0;
  virtual absl::Status Broadcast(Span data, int root, Stream& stream) = 0;
  virtual absl::Status Barrier(Stream& stream) = 0;

  // From any thread: every waiting and later call fails with `why`.
  virtual void Abort(absl::Status why) = 0;

  virtual Traffic traffic() const = 0;
};

struct ScheduledGroupOptions {
  std::string algorithm = "ring";
  absl::Duration timeout = absl::Seconds(60);  // without progress of a round
  size_t segment_bytes = 256 << 10;  // a round's slices are cut into segments; segment s of the next round
                                     // starts as soon as segment s of this one is done
};

// Our own: runs a schedule over a transport. Owns the transport.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeScheduledGroup(std::unique_ptr<Transport> transport,
                                                                 const ScheduledGroupOptions& options);

}  // namespace psring
