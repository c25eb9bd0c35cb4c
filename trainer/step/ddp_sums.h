// Sums of the times that PyTorch's DistributedDataParallel reports (get_ddp_logging_data).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/measure/records.h"

namespace psring {

// Of one step, in ns.
struct ComputeTimes {
  int64_t forward_ns = 0;  // of all its batches
  int64_t backward_ns = 0;
  std::pair<int64_t, int64_t> last_backward;  // begin and end; the one during which buckets are sent
};

class DdpSums {
 public:
  // `in_flight`: begin and end of each bucket's communication.
  void Add(const ComputeTimes& times, std::vector<std::pair<int64_t, int64_t>> in_flight);

  // Sets the means, in ms.
  void Describe(DdpFigures& figures) const;

 private:
  int64_t steps_ = 0;
  int64_t forward_ns_ = 0, backward_ns_ = 0, comm_ns_ = 0, overlap_ns_ = 0;
};

}  // namespace psring
