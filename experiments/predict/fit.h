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
  int size = 0;         // number of workers or GPUs; the largest is withheld to judge extrapolation
  double measured = 0;  // seconds of a step
  std::function<absl::StatusOr<double>(const Constants&)> predict;  // seconds
};

// Minimizes the squares of log(predicted / measured), with a standard deviation of 5% per row, plus the
// constants' priors. Compass search on a logarithmic grid of 2%, from `start` or else the constants' starts.
// Returns the first error of a row's `predict`.
absl::StatusOr<Constants> Fit(const std::vector<FitRow>& rows, const std::vector<std::string>& names,
                              const Constants& start = {});

}  // namespace psring
