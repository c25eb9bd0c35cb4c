// Clipping a gradient by its global norm (Pascanu, Mikolov & Bengio 2013): where the norm of the mean
// gradient, over all parameters, is above a bound, the gradient is shortened to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace psring {

// The sum of squares of `count` floats, in double. Its bits depend on the values and their order alone.
double SumOfSquares(const float* values, size_t count);

// What the mean gradient is to be multiplied by: min(1, clip_norm / norm). `sum_of_squares` is that of the
// summed gradient of `samples` samples, over all parameters. 1 where clip_norm is 0: nothing is clipped.
// OutOfRange: the gradient is not finite, so it has no norm.
absl::StatusOr<double> ClipFactor(double clip_norm, double sum_of_squares, int64_t samples);

}  // namespace psring
