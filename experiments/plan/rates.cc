#include "experiments/plan/rates.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/io/csv.h"

namespace psring {
namespace {

bool SameRow(const TriedRate& a, const TriedRate& b) {
  return a.strategy == b.strategy && a.workers == b.workers;
}

}  // namespace

absl::Status PickRates(std::vector<TriedRate>& tried) {
  for (const TriedRate& row : tried) {
    TriedRate* best = nullptr;
    for (TriedRate& rate : tried) {
      if (!SameRow(rate, row) || !rate.accuracy) continue;
      const bool better = best == nullptr || *rate.accuracy > *best->accuracy ||
                          (*rate.accuracy == *best->accuracy && rate.lr < best->lr);
      if (better) best = &rate;
    }
    if (best == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(row.strategy, " x ", row.workers, " diverged with every --lr; use lower ones"));
    }
    best->picked = true;
  }
  return absl::OkStatus();
}

void UsePickedRate(const std::vector<TriedRate>& tried, Configuration& configuration) {
  const TriedRate* nearest = nullptr;
  for (const TriedRate& rate : tried) {
    if (!rate.picked || rate.strategy != configuration.strategy.name) continue;
    const auto distance = [&](const TriedRate& other) {
      return std::abs(other.workers - configuration.workers);
    };
    if (nearest == nullptr || distance(rate) < distance(*nearest)) nearest = &rate;
  }
  if (nearest == nullptr) return;
  configuration.training.lr = nearest->lr;
  configuration.update.lr = nearest->lr;
}

std::string RatesCsv(const std::vector<TriedRate>& tried) {
  std::string text = "strategy,workers,lr,validation_accuracy,validation_loss,picked\n";
  for (const TriedRate& rate : tried) {
    text +=
        CsvLine({rate.strategy, absl::StrCat(rate.workers), absl::StrFormat("%g", rate.lr),
                 rate.accuracy ? absl::StrFormat("%.6g", *rate.accuracy) : "",
                 rate.accuracy ? absl::StrFormat("%.6g", rate.loss) : "", rate.picked ? "true" : "false"});
  }
  return text;
}

std::string DescribeRates(const std::vector<TriedRate>& tried) {
  std::vector<std::string> parts;
  for (const TriedRate& rate : tried) {
    if (rate.picked) parts.push_back(absl::StrFormat("%s x %d %g", rate.strategy, rate.workers, rate.lr));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace psring
