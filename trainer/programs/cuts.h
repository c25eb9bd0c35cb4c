// Where a model is cut into the stages of a pipeline. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"

namespace psring {

// A model as consecutive units: layers, or blocks of them.
struct CutUnits {
  std::vector<double> cost;           // by unit, at least 0
  std::vector<size_t> points;         // the units before which it can be cut: increasing, without 0
  std::vector<double> crossing = {};  // by point: the size of what crosses it; empty: equal sizes
  std::vector<bool> weights = {};     // by unit: whether it has any; empty: all have
};

// InvalidArgument: a model with these points cannot be cut into so many stages; or `cuts` are not increasing
// points, which the message lists.
absl::Status CheckStageCount(const std::vector<size_t>& points, int stages);
absl::Status CheckCutPoints(const std::vector<size_t>& points, const std::vector<size_t>& cuts);

// The `stages` - 1 points for which the largest stage costs least; of several solutions, one with the least
// crossing in all its points, and of these the one with the most units in the last stages. Every stage has
// weights if there are so many stages with weights. `stages`: as CheckStageCount allows.
std::vector<size_t> BalancedCuts(const CutUnits& units, int stages);

}  // namespace psring
