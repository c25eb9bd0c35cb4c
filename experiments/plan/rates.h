// Picks each strategy's learning rate from several, by accuracy on validation samples. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/plan.h"

namespace psring {

// The default of --validation: samples that rates are picked on.
inline constexpr int kValidationSamples = 5000;

struct TriedRate {
  std::string strategy;
  int workers = 1;
  double lr = 0;
  std::optional<double> accuracy;  // final, on the validation samples; empty: it diverged
  double loss = 0;                 // likewise
  bool picked = false;
};

// Marks the most accurate rate of each strategy and worker count, of equal ones the lowest.
// FailedPrecondition: a strategy diverged with all rates.
absl::Status PickRates(std::vector<TriedRate>& tried);

// Sets the rate picked for the configuration's strategy and worker count, or for the nearest worker count.
void UsePickedRate(const std::vector<TriedRate>& tried, Configuration& configuration);

std::string RatesCsv(const std::vector<TriedRate>& tried);
// "ring x 4 0.05, ps-async x 4 0.02".
std::string DescribeRates(const std::vector<TriedRate>& tried);

}  // namespace psring
