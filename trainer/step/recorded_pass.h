// Work that is enqueued in the same way every time (a forward or backward pass, or both with the strategy's
// work on the gradients), as CUDA graphs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/cuda/recorded_work.h"
#include "common/device/device.h"

namespace psring {

// The first run only enqueues, so that ops choose algorithms and allocate memory. The second run records, and
// later runs repeat the recording. A call of `cut` ends one recorded piece and begins the next: a backward
// pass is cut where gradients become ready, so that the resulting work (events, stamps, other streams) is
// between the pieces and not in them. Used by one thread.
class RecordedPass {
 public:
  using Ready = std::function<void(ReadyRange range)>;
  using Enqueue = std::function<absl::Status(const Ready& cut)>;

  // Whether the next run repeats the recording, without calling `enqueue`.
  bool repeats() const { return runs_ > 1; }

  // `enqueue` puts the pass on `stream`, always the same compute stream of a GPU, and calls its argument
  // where a range is ready. For each such call `ready` is called, in stream order, outside recordings.
  absl::Status Run(Stream& stream, const Enqueue& enqueue, const Ready& ready);

 private:
  struct Piece {
    std::unique_ptr<RecordedWork> work;  // null: nothing before the cut
    std::optional<ReadyRange> ready;     // after it; none after the last piece
  };

  absl::Status Record(Stream& stream, const Enqueue& enqueue, const Ready& ready);

  int runs_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace psring
