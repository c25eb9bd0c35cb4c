#include "trainer/step/ddp_sums.h"

#include <algorithm>

#include "common/measure/trace.h"

namespace psring {

void DdpSums::Add(const ComputeTimes& times, std::vector<std::pair<int64_t, int64_t>> in_flight) {
  ++steps_;
  forward_ns_ += times.forward_ns;
  backward_ns_ += times.backward_ns;
  comm_ns_ += BusyNanos(in_flight);
  for (auto& [begin, end] : in_flight) {
    begin = std::clamp(begin, times.last_backward.first, times.last_backward.second);
    end = std::clamp(end, times.last_backward.first, times.last_backward.second);
  }
  overlap_ns_ += BusyNanos(std::move(in_flight));
}

void DdpSums::Describe(DdpFigures& figures) const {
  const auto mean_ms = [this](int64_t ns) {
    return 1e-6 * static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, steps_));
  };
  figures.forward_ms = mean_ms(forward_ns_);
  figures.backward_ms = mean_ms(backward_ns_);
  figures.comm_ms = mean_ms(comm_ns_);
  figures.overlap_ms = mean_ms(overlap_ns_);
}

}  // namespace psring
