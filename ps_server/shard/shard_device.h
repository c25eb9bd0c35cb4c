// Where a shard's numbers live, and who computes with them there.
//
// In the host's memory whoever calls does the work, on its own thread, and has help with what is large. On a
// GPU a gradient's chunk is gathered in pinned memory, goes up on a stream for copies and is added by a
// kernel while the next chunk is received; weights come down on a third stream. All kernels are on one
// stream: so chunks of different workers are added one after the other, and an update comes after what it is
// made of.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"

namespace psring {

// What one thread computes with.
struct Lane {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;  // kCompute
};

// Thread-safe, but that one thread at a time writes to a place. After an error of the device every call
// fails.
class ShardDevice {
 public:
  virtual ~ShardDevice() = default;  // waits for what is under way

  enum class Take { kSet, kAdd };

  // `to` = (kSet) or += the values of `payload`, at most kChunkBytes of `type`. The pieces may go when this
  // returns; what is asked of this device afterwards sees the result. kRequired: the first element that is
  // NaN or infinite, where there is one; part of what is before it may have been taken.
  virtual absl::StatusOr<std::optional<size_t>> TakeIn(Take how, DType type, Pieces payload, Span to,
                                                       Finite finite) = 0;

  // `work` enqueues on the stream it is given, and is done when this returns. On a GPU one at a time.
  virtual absl::Status Compute(Lane& lane, const std::function<void(Ops&, Stream&)>& work) = 0;

  // Work on `count` floats whose parts do not depend on each other: `work` gets all of them, in parts. In the
  // host's memory these are kChunkBytes each, and those of one call are shared out among several threads.
  // `made(end)` says that everything before `end` is done: in ascending order, one call at a time, from any
  // of these threads, the last one with `count`.
  using Part = std::function<void(size_t first, size_t count, Ops& ops, Stream& stream)>;
  using Made = std::function<void(size_t end)>;
  virtual absl::Status ComputeInParts(Lane& lane, size_t count, const Part& work, const Made& made) = 0;

  // Into the host's memory. `pinned`: memory of AllocateOnHost, which needs no stop on the way.
  virtual absl::Status BringDown(ConstSpan from, void* to, bool pinned) = 0;

  // Of values where this computes: which is the first that is NaN or infinite.
  virtual absl::StatusOr<std::optional<size_t>> FirstNotFinite(ConstSpan values, Lane& lane) = 0;

  // The squares of `values`, added up.
  virtual absl::StatusOr<double> SumOfSquares(ConstSpan values, Lane& lane) = 0;
};

// For `device`, which must outlive it.
absl::StatusOr<std::unique_ptr<ShardDevice>> MakeShardDevice(Device& device);

}  // namespace psring
