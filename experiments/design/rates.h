// Picks each strategy's learning rate from several, by accuracy on validation samples. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/design/plan.h"

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

// The rates to try for `configuration`: --lr's list, or --tune's factors times its own rate. Empty: none.
std::vector<double> RatesToTry(const CompareOptions& options, const Configuration& configuration);
// The number of rates tried for each configuration.
int CountOfRates(const CompareOptions& options);

// Marks the most accurate rate of each strategy and worker count; among equal ones, the lowest.
// FailedPrecondition: a strategy diverged with all rates.
absl::Status PickRates(std::vector<TriedRate>& tried);

// Sets the rate picked for the configuration's strategy and worker count, or for the nearest worker count,
// and tried_lrs.
void UsePickedRate(const std::vector<TriedRate>& tried, Configuration& configuration);

std::string RatesCsv(const std::vector<TriedRate>& tried);
// The inverse. InvalidArgument: another text.
absl::StatusOr<std::vector<TriedRate>> RatesFromCsv(const std::string& csv);
// "ring x 4 0.05, ps-async x 4 0.02".
std::string DescribeRates(const std::vector<TriedRate>& tried);

}  // namespace psring
