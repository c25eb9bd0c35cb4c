// Work that is enqueued in the same way every time (a forward or backward pass, or both and what a strategy
// makes of the gradients), as CUDA graphs.
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

// The first run only enqueues: ops find their algorithms and their memory. The second records, the others
// repeat what it recorded. What calls `cut` is cut there: a backward pass where gradients become ready, so
// that what comes of that (events, stamps, other streams) stands between the recorded pieces and not in them.
// One thread.
class RecordedPass {
 public:
  using Ready = std::function<void(ReadyRange range)>;

  // Whether the next run repeats what was recorded, without calling `enqueue`.
  bool repeats() const { return runs_ > 1; }

  // `enqueue` puts the pass on `stream`, a GPU's compute stream and always the same, and calls its argument
  // where a range is ready; each time `ready` is called in its place, in stream order, with nothing being
  // recorded.
  absl::Status Run(Stream& stream, const std::function<void(const Ready& cut)>& enqueue, const Ready& ready);

 private:
  struct Piece {
    std::unique_ptr<RecordedWork> work;  // null: there is nothing before the cut
    std::optional<ReadyRange> ready;     // behind it; nothing behind the last
  };

  absl::Status Record(Stream& stream, const std::function<void(const Ready& cut)>& enqueue,
                      const Ready& ready);

  int runs_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace psring
