// The registry of the model's constants that can be fitted to measured steps. Pure.
#pragma once

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
  const char* meaning;
  void (*apply)(double value, Cluster& cluster, PredictOptions& options);
};
const std::vector<ConstantInfo>& ConstantInfos();
const ConstantInfo& ConstantInfoOf(const std::string& name);  // CHECKs that it exists

void Apply(const Constants& constants, Cluster& cluster, PredictOptions& options);

// "fraction 0.66, compute_cv 0.05"
std::string ConstantsText(const Constants& constants);

}  // namespace psring
