// Which learning rate suits a strategy: several are tried, and the best on samples held out of training is
// taken. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/plan.h"

namespace psring {

// The samples that rates are picked on, unless --validation says otherwise.
inline constexpr int kValidationSamples = 5000;

struct TriedRate {
  std::string strategy;
  int workers = 1;
  double lr = 0;
  std::optional<double> accuracy;  // on the validation samples, in the end; empty: it diverged
  double loss = 0;                 // likewise
  bool picked = false;
};

// Marks the rate with the best accuracy of each strategy and number of workers (the lowest of equals).
// FailedPrecondition where one diverged with all rates.
absl::Status PickRates(std::vector<TriedRate>& tried);

// Gives `configuration` the rate that was picked for it: for its strategy and number of workers, else for its
// strategy with the nearest number.
void TakeRate(const std::vector<TriedRate>& tried, Configuration& configuration);

std::string RatesCsv(const std::vector<TriedRate>& tried);
// "ring x 4 0.05, ps-async x 4 0.02": for people.
std::string DescribeRates(const std::vector<TriedRate>& tried);

}  // namespace psring
