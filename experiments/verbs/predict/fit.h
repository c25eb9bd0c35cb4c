// The registry of the model's constants that can be fitted to measured steps, and the fit by relative error.
// Pure and deterministic.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/simulator/prediction.h"

namespace psring {

using Constants = std::map<std::string, double>;  // by name

struct ConstantInfo {
  const char* name;
  // Fits start at `start` and stay within `least` to `most`. The prior is log-normal around `start` with
  // standard deviation `spread` of the logarithm, so a constant that the rows do not determine stays there.
  double start, least, most, spread;
  void (*apply)(double value, Cluster& cluster, PredictOptions& options);
};
const std::vector<ConstantInfo>& ConstantInfos();
const ConstantInfo* FindConstant(const std::string& name);  // null: unknown

// In the order of the names: a window's limit uses the latency.
void Apply(const Constants& constants, Cluster& cluster, PredictOptions& options);

// What is fitted to each published system: the share of the links' rate that its programs get, what more
// machines take of it, and how computing varies. In the order of the map.
std::vector<std::string> FittedCauses();

// "fraction 0.66, compute_cv 0.05"
std::string ConstantsText(const Constants& constants);

using StepSeconds = std::function<absl::StatusOr<double>(const Constants&)>;

// The predicted step of `point`.
StepSeconds PredictedStepOf(Workload workload, const PredictCase& point, const Cluster& cluster,
                            const PredictOptions& options);

// One measured step.
struct FitRow {
  std::string label;
  int size = 0;           // number of workers or GPUs
  double measured = 0;    // seconds of a step
  StepSeconds predict;    // of known constants
  bool withheld = false;  // from a fit, to judge extrapolation
};

// Minimizes the squares of log(predicted / measured), with a standard deviation of 5% per row, plus the
// constants' priors. Compass search on a logarithmic grid of 2%, from the first values of the constants, and
// of these with each of `others` in turn; the best result. Returns the first error of a row's `predict`.
absl::StatusOr<Constants> Fit(const std::vector<FitRow>& rows, const std::vector<std::string>& names,
                              const std::vector<Constants>& others = {});

struct CheckedRow {
  std::string label;
  int size = 0;
  double measured = 0, predicted = 0;  // seconds of a step; fitted without the withheld rows
  bool withheld = false;
  double error() const { return predicted / measured - 1; }
};

struct CheckedFit {
  std::vector<CheckedRow> rows;
  Constants without, all;  // fitted without the withheld rows; over all rows
};
absl::StatusOr<CheckedFit> FitAndCheck(const std::vector<FitRow>& rows,
                                       const std::vector<std::string>& names);

}  // namespace psring
