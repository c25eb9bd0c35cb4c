#include "experiments/plan/rates.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/io/csv.h"

namespace psring {
namespace {

bool SameRow(const TriedRate& a, const TriedRate& b) {
  return a.strategy == b.strategy && a.workers == b.workers;
}

}  // namespace

std::vector<double> RatesToTry(const CompareOptions& options, const Configuration& configuration) {
  std::vector<double> rates = options.lr_factors;
  for (double& rate : rates) rate *= configuration.update.lr;
  if (rates.empty() && options.lrs.size() > 1) rates = options.lrs;
  std::sort(rates.begin(), rates.end());
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
      return absl::FailedPreconditionError(absl::StrCat(
          row.strategy, " x ", row.workers, " diverged with every learning rate; use lower ones"));
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
  std::string text = "strategy,workers,lr,validation_accuracy,validation_loss,picked\n";
  for (const TriedRate& rate : tried) {
    text +=
        CsvLine({rate.strategy, absl::StrCat(rate.workers), absl::StrFormat("%g", rate.lr),
                 rate.accuracy ? absl::StrFormat("%.6g", *rate.accuracy) : "",
                 rate.accuracy ? absl::StrFormat("%.6g", rate.loss) : "", rate.picked ? "true" : "false"});
  }
  return text;
}

absl::StatusOr<std::vector<TriedRate>> RatesFromCsv(const std::string& csv) {
  constexpr double kMost = 1e30;
  const auto number = [](const std::string& text, double& value) {
    return absl::SimpleAtod(text, &value) && value >= 0 && value <= kMost;
  };
  std::vector<TriedRate> tried;
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n', absl::SkipEmpty());
  for (size_t i = 1; i < lines.size(); ++i) {
    const absl::StatusOr<std::vector<std::string>> parsed = ParseCsvLine(lines[i]);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", i + 1, ": ", parsed.status().message()));
    }
    const std::vector<std::string>& fields = *parsed;
    TriedRate rate{.strategy = fields.front()};
    double accuracy = 0;
    if (fields.size() != 6 || !absl::SimpleAtoi(fields[1], &rate.workers) || rate.workers < 1 ||
        !number(fields[2], rate.lr) || (fields[5] != "true" && fields[5] != "false") ||
        (!fields[3].empty() && (!number(fields[3], accuracy) || !absl::SimpleAtod(fields[4], &rate.loss)))) {
      return absl::InvalidArgumentError(absl::StrCat("line ", i + 1, " is not one of rates.csv"));
    }
    if (!fields[3].empty()) rate.accuracy = accuracy;
    rate.picked = fields[5] == "true";
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
