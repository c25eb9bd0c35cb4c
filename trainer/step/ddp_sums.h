// Sums for the times that PyTorch's DistributedDataParallel logs of itself.
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
  std::pair<int64_t, int64_t> last_backward;  // begin and end: the one in which buckets go
};

class DdpSums {
 public:
  // `in_flight`: begin and end of each bucket's communication.
  void Add(const ComputeTimes& times, std::vector<std::pair<int64_t, int64_t>> in_flight);

  // Fills in the means, in ms.
  void Describe(DdpFigures& figures) const;

 private:
  int64_t steps_ = 0;
  int64_t forward_ns_ = 0, backward_ns_ = 0, comm_ns_ = 0, overlap_ns_ = 0;
};

}  // namespace psring
