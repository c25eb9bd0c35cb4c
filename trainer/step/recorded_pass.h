// Parts of a training step as CUDA graphs (--cuda_graph).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/cuda/recorded_work.h"
#include "common/device/device.h"

namespace psring {

// Work that is enqueued in the same way every time (a forward or backward pass, or both with the strategy's
// work on the gradients), as CUDA graphs. The first run only enqueues, so that ops choose algorithms and
// allocate memory. The second run records, and later runs repeat the recording. A call of `cut` ends one
// recorded piece and begins the next: a backward pass is cut where buckets are complete, so that the
// resulting work (events, stamps, other streams) is between the pieces and not in them. Used by one thread.
class RecordedPass {
 public:
  using Cut = std::function<void(int unit)>;
  using Enqueue = std::function<absl::Status(const Cut& cut)>;

  // Whether the next run repeats the recording, without calling `enqueue`.
  bool repeats() const { return runs_ > 1; }

  // `enqueue` puts the pass on `stream`, always the same compute stream of a GPU, and calls its argument
  // where a unit's buckets are complete. For each such call `ready` is called, in stream order, outside
  // recordings.
  absl::Status Run(Stream& stream, const Enqueue& enqueue, const Cut& ready);

 private:
  struct Piece {
    std::unique_ptr<RecordedWork> work;  // null: nothing before the cut
    std::optional<int> unit;             // whose buckets are ready after it; none after the last piece
  };

  absl::Status Record(Stream& stream, const Enqueue& enqueue, const Cut& ready);

  int runs_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace psring
