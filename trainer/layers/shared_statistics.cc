#include "trainer/layers/shared_statistics.h"

#include "common/base/check.h"

namespace psring {

// The variance of all rows is the mean variance plus the variance of the means (Chan et al. 1979).
absl::Status SharedStatistics::Combine(Span statistics, Stream& stream) {
  const size_t channels = statistics.count / 2, count = statistics.count * static_cast<size_t>(ranks());
  PSRING_CHECK(count <= gathered_.size());
  PSRING_RETURN_IF_ERROR(group_.AllGather(statistics, {gathered_.data(), count}, stream));
  stream.Run([this, statistics, channels] {
    const size_t ranks = static_cast<size_t>(this->ranks());
    for (size_t c = 0; c < channels; ++c) {
      double mean = 0, variance = 0;
      for (size_t r = 0; r < ranks; ++r) mean += gathered_[r * statistics.count + c];
      mean /= static_cast<double>(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        const double distance = gathered_[r * statistics.count + c] - mean;
        variance += gathered_[r * statistics.count + channels + c] + distance * distance;
      }
      statistics.floats()[c] = static_cast<float>(mean);
      statistics.floats()[channels + c] = static_cast<float>(variance / static_cast<double>(ranks));
    }
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status SharedStatistics::Average(Span values, Stream& stream) {
  return group_.AllReduce(values, values, ReduceOp::kMean, stream);
}

}  // namespace psring
