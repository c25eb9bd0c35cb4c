#include "common/ops/gradient_norm.h"

#include <cmath>

namespace psring {

double SumOfSquares(const float* values, size_t count) {
  // Separate accumulators, so that the compiler can use vectors without changing any order.
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (; i < count; ++i) sum += double{values[i]} * values[i];
  return sum;
}

absl::StatusOr<double> ClipFactor(double clip_norm, double sum_of_squares, int64_t samples) {
  if (clip_norm == 0 || samples == 0) return 1.0;
  if (!std::isfinite(sum_of_squares) || sum_of_squares < 0) {
    return absl::OutOfRangeError("cannot clip the gradient, which is not finite; a lower --lr may help");
  }
  const double norm = std::sqrt(sum_of_squares) / static_cast<double>(samples);
  return norm > clip_norm ? clip_norm / norm : 1.0;
}

}  // namespace psring
