// Where a shard's values are, and what computes with them.
//
// In the host's memory the calling thread does the work, with helpers for what is large. On a GPU a chunk is
// gathered in pinned memory, copied on one stream and added by a kernel while the next one is received;
// weights are copied back on a third stream. All kernels run on one stream, so chunks of different workers
// are added one after the other, and an update runs after the additions that it needs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "ps_server/protocol/pieces.h"

namespace psring {

// The compute resources of one thread.
struct Lane {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;  // kCompute
};

// Thread-safe; one thread at a time writes to a range of memory. After an error of the device every call
// fails.
class ShardDevice {
 public:
  virtual ~ShardDevice() = default;  // waits for work in progress

  enum class Take { kSet, kAdd };

  // `to` = (kSet) or += (kAdd) the values of `payload`, at most kChunkBytes of `type`. The pieces are not
  // used after the call; later calls see the result. kRequired: returns the first element that is NaN or
  // infinite, if there is one; earlier ones may have been taken.
  virtual absl::StatusOr<std::optional<size_t>> TakeIn(Take how, DType type, Pieces payload, Span to,
                                                       Finite finite) = 0;

  // `work` enqueues on its stream, and is complete when this returns. On a GPU one at a time.
  virtual absl::Status Compute(Lane& lane, const std::function<void(Ops&, Stream&)>& work) = 0;

  // Work on `count` floats that are independent of each other, in parts. In the host's memory a part is
  // kChunkBytes, and several threads share the parts of a call. `made(end)` states that everything before
  // `end` is complete: in ascending order, one call at a time, from any of these threads; last with `count`.
  using Part = std::function<void(size_t first, size_t count, Ops& ops, Stream& stream)>;
  using Made = std::function<void(size_t end)>;
  virtual absl::Status ComputeInParts(Lane& lane, size_t count, const Part& work, const Made& made) = 0;

  // Copies to the host's memory. `pinned`: `to` is memory of AllocateOnHost, so no other copy is needed.
  virtual absl::Status CopyToHost(ConstSpan from, void* to, bool pinned) = 0;

  // The first of `values`, in this device's memory, that is NaN or infinite.
  virtual absl::StatusOr<std::optional<size_t>> FirstNotFinite(ConstSpan values, Lane& lane) = 0;

  virtual absl::StatusOr<double> SumOfSquares(ConstSpan values, Lane& lane) = 0;
};

// For `device`, which must outlive it.
absl::StatusOr<std::unique_ptr<ShardDevice>> MakeShardDevice(Device& device);
// gpu_shard_device.cc; for a device whose memory the host cannot read. Uses the Device interface, not CUDA.
absl::StatusOr<std::unique_ptr<ShardDevice>> MakeGpuShardDevice(Device& device);

}  // namespace psring
