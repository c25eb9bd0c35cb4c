#include "experiments/design/rates.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/csv.h"

namespace psring {
namespace {

constexpr char kColumns[] = "strategy,workers,lr,validation_accuracy,validation_loss,picked";

bool SameRow(const TriedRate& a, const TriedRate& b) {
  return a.strategy == b.strategy && a.workers == b.workers;
}

}  // namespace

std::vector<double> RatesToTry(const CompareOptions& options, const Configuration& configuration) {
  std::vector<double> rates = options.lr_factors;
  for (double& rate : rates) rate *= configuration.update.lr;
  if (rates.empty() && options.lrs.size() > 1) rates = options.lrs;
  std::ranges::sort(rates);
  return rates;
}

int CountOfRates(const CompareOptions& options) {
  if (!options.lr_factors.empty()) return static_cast<int>(options.lr_factors.size());
  return options.lrs.size() > 1 ? static_cast<int>(options.lrs.size()) : 0;
}

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
      return FailedPrecondition(row.strategy, " x ", row.workers,
                                " diverged with every learning rate; use lower ones");
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
  configuration.tried_lrs.clear();
  for (const TriedRate& rate : tried) {
    if (SameRow(rate, *nearest)) configuration.tried_lrs.push_back(rate.lr);
  }
}

std::string RatesCsv(const std::vector<TriedRate>& tried) {
  std::string text = absl::StrCat(kColumns, "\n");
  for (const TriedRate& rate : tried) {
    text +=
        CsvLine({rate.strategy, absl::StrCat(rate.workers), absl::StrFormat("%g", rate.lr),
                 rate.accuracy ? absl::StrFormat("%.6g", *rate.accuracy) : "",
                 rate.accuracy ? absl::StrFormat("%.6g", rate.loss) : "", rate.picked ? "true" : "false"});
  }
  return text;
}

absl::StatusOr<std::vector<TriedRate>> RatesFromCsv(const std::string& csv) {
  constexpr double kMax = 1e30;
  CsvReader file(csv);
  PSRING_RETURN_IF_ERROR(file.ReadHeader());
  if (absl::StrJoin(file.columns(), ",") != kColumns) {
    return file.Error(absl::StrCat("the columns must be ", kColumns));
  }
  std::vector<TriedRate> tried;
  while (true) {
    PSRING_ASSIGN_OR_RETURN(const bool any, file.NextRow());
    if (!any) break;
    TriedRate rate{.strategy = file.Field("strategy").text};
    PSRING_ASSIGN_OR_RETURN(const int64_t workers, file.WholeNumber("workers", 1, INT32_MAX));
    rate.workers = workers;
    PSRING_ASSIGN_OR_RETURN(rate.lr, file.Number("lr", 0, kMax));
    if (!file.Field("validation_accuracy").text.empty()) {
      PSRING_ASSIGN_OR_RETURN(rate.accuracy, file.Number("validation_accuracy", 0, kMax));
      PSRING_ASSIGN_OR_RETURN(rate.loss, file.Number("validation_loss", -kMax, kMax));
    }
    const std::string& picked = file.Field("picked").text;
    if (picked != "true" && picked != "false") return file.Error("picked is neither true nor false");
    rate.picked = picked == "true";
    tried.push_back(rate);
  }
  if (tried.empty()) return absl::InvalidArgumentError("it has no rates");
  return tried;
}

std::string DescribeRates(const std::vector<TriedRate>& tried) {
  std::vector<std::string> parts;
  for (const TriedRate& rate : tried) {
    if (rate.picked) parts.push_back(absl::StrFormat("%s x %d %g", rate.strategy, rate.workers, rate.lr));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace psring
