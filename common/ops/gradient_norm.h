// Clipping a gradient by its global norm (Pascanu, Mikolov & Bengio 2013): if the norm of the mean gradient
// over all parameters exceeds a bound, the gradient is scaled down to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace psring {

// The sum of squares of `count` floats, in double. Its bits depend only on the values and their order.
double SumOfSquares(const float* values, size_t count);

// The factor for the mean gradient: min(1, clip_norm / norm). `sum_of_squares` is that of the summed gradient
// of `samples` samples, over all parameters. 1 if clip_norm is 0 (no clipping). OutOfRange: the gradient is
// not finite.
absl::StatusOr<double> ClipFactor(double clip_norm, double sum_of_squares, int64_t samples);

}  // namespace psring
