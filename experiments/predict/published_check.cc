#include "experiments/predict/published_check.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace psring {
namespace {

// By row of RowsOf: true for the last row of each model.
std::vector<bool> Withheld(const PublishedSystem& system) {
  std::vector<bool> withheld;
  for (const PublishedModel& model : system.models) {
    for (size_t i = 1; i < model.rows.size(); ++i) withheld.push_back(i + 1 == model.rows.size());
  }
  return withheld;
}

std::vector<double> WithheldErrors(const std::vector<CheckedSystem>& systems) {
  std::vector<double> errors;
  for (const CheckedSystem& checked : systems) {
    for (const CheckedRow& row : checked.rows) {
      if (row.withheld) errors.push_back(std::abs(row.error()));
    }
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

std::string SystemText(const CheckedSystem& checked) {
  const PublishedSystem& system = *checked.system;
  std::string text = absl::StrFormat("\n## %s: %s\n\n%s. %s, %s. %s\n\n", system.name, system.title,
                                     system.source, system.gpu, system.network, system.remark);
  absl::StrAppend(&text, "Fitted without the withheld rows: ", ConstantsText(checked.without),
                  "; over all rows: ", ConstantsText(checked.all), ".\n\n");
  absl::StrAppend(&text, "| case | published, ms a step | predicted | error | |\n|---|---|---|---|---|\n");
  for (const CheckedRow& row : checked.rows) {
    absl::StrAppendFormat(&text, "| %s | %.1f | %.1f | %+.1f%% | %s |\n", row.label, 1e3 * row.published,
                          1e3 * row.predicted, 100 * row.error(), row.withheld ? "withheld" : "fitted");
  }
  return text;
}

}  // namespace

absl::StatusOr<CheckedSystem> CheckSystem(const PublishedSystem& system) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<FitRow> rows, RowsOf(system));
  const std::vector<bool> withheld = Withheld(system);
  std::vector<FitRow> kept;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!withheld[i]) kept.push_back(rows[i]);
  }
  CheckedSystem checked{.system = &system};
  PSRING_ASSIGN_OR_RETURN(checked.without, Fit(kept, system.fitted));
  PSRING_ASSIGN_OR_RETURN(checked.all, Fit(rows, system.fitted));
  for (size_t i = 0; i < rows.size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(const double predicted, rows[i].predict(checked.without));
    checked.rows.push_back({.label = rows[i].label,
                            .published = rows[i].measured,
                            .predicted = predicted,
                            .withheld = withheld[i]});
  }
  return checked;
}

double FactorOf(const std::vector<CheckedSystem>& systems, double share) {
  std::vector<double> factors;
  for (const CheckedSystem& checked : systems) {
    for (const CheckedRow& row : checked.rows) {
      if (row.withheld) factors.push_back(std::exp(std::abs(std::log1p(row.error()))));
    }
  }
  std::sort(factors.begin(), factors.end());
  if (factors.empty()) return 1;
  const auto place = static_cast<size_t>(std::ceil(share * static_cast<double>(factors.size())));
  return factors[std::max<size_t>(place, 1) - 1];
}

std::string PublishedText(const std::vector<CheckedSystem>& systems) {
  std::string text =
      "# Published runs, predicted\n\nWritten by `./run predict --published`. Every predicted figure is "
      "*simulated*; the published ones\nare measurements by others.\n\nThe first row of each model, on one "
      "machine, sets its computing time and is not listed. At most two constants per\nsystem are fitted. "
      "The largest run of each model is withheld from the fit and predicted: this is an extrapolation, "
      "which\nleave-one-out would hide. The fit assumes that rows are accurate to 5% and that constants are "
      "near their initial\nvalues, so a constant that the rows do not determine keeps its initial value.\n";
  for (const CheckedSystem& checked : systems) text += SystemText(checked);
  const std::vector<double> errors = WithheldErrors(systems);
  PSRING_CHECK(!errors.empty());
  const double factor = FactorOf(systems, 0.9);
  absl::StrAppendFormat(&text,
                        "\n## All withheld rows\n\n%d rows: median error %.1f%%, worst %.1f%%. 90%% are "
                        "within a factor of %.2f of "
                        "their prediction.\n\nThe range that predict prints is a factor of %.2f up and down, "
                        "a width of %.2f. It is larger "
                        "because the constants\nof each system, except the last three, were chosen when its "
                        "withheld rows were already known.\n\nThese runs do not show what causes a loss: "
                        "`compute_cv` stands for everything that makes a synchronous step wait for its\n"
                        "slowest machine, `node_loss` for everything that slows an exchange down as machines "
                        "are added.\n",
                        errors.size(), 100 * errors[errors.size() / 2], 100 * errors.back(), factor,
                        kCalibratedFactor, kCalibratedFactor * kCalibratedFactor);
  return text;
}

}  // namespace psring
