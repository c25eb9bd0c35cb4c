// The constants of the model that can be fitted to measured steps. One registry. Pure.
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
  // Fits start there; the prior is log-normal with this standard deviation of the logarithm, so that a
  // constant that the rows do not determine stays at its start.
  double start, least, most, spread;
  const char* meaning;
  void (*apply)(double value, Cluster& cluster, PredictOptions& options);
};
const std::vector<ConstantInfo>& ConstantInfos();
const ConstantInfo& ConstantInfoOf(const std::string& name);  // it exists

void Apply(const Constants& constants, Cluster& cluster, PredictOptions& options);

// "fraction 0.66, compute_cv 0.05"
std::string ConstantsText(const Constants& constants);

}  // namespace psring
