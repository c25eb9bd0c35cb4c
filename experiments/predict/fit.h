// Fits constants to measured steps by relative error. Pure and deterministic.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/predict/constants.h"

namespace psring {

// One measured step.
struct FitRow {
  std::string label;
  int size = 0;         // the number of workers that extrapolation is judged by
  double measured = 0;  // seconds of a step
  std::function<absl::StatusOr<double>(const Constants&)> predict;  // seconds
};

// Least squares of log(predicted / measured), rows accurate to 5%, plus the constants' priors. Compass search
// on a logarithmic grid of 2% from the constants' starts, or from `start` where given.
absl::StatusOr<Constants> Fit(const std::vector<FitRow>& rows, const std::vector<std::string>& names,
                              const Constants& start = {});

}  // namespace psring
