#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/design/estimate.h"
#include "experiments/design/plan.h"
#include "experiments/design/rates.h"

namespace psring {
namespace {

// Processor time of one configuration's training on `samples` samples.
double TrainingSeconds(const Configuration& configuration, const Probe& probe, double samples) {
  return samples / static_cast<double>(configuration.step_samples()) *
             ComputeSeconds(configuration.training, probe) +
         LaunchOverheadSeconds(configuration, probe, 1);
}

}  // namespace

absl::Status CheckVirtualOptions(const CompareOptions& options) {
  if (!options.training.backend.empty()) {
    return absl::InvalidArgumentError("--backend does not apply to --clock virtual; omit it");
  }
  if (options.training.compute_ms.empty()) return absl::OkStatus();
  for (const std::string& name : options.strategies) {
    PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(name));
    PSRING_RETURN_IF_ERROR(CheckVirtualStrategy(strategy, options.training));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakeVirtualPlan(const CompareOptions& options, const Probe& probe, int cores) {
  Plan plan{.simulated = true};
  TrainingOptions training = options.training;
  if (training.samples > 0 || training.epochs > 0) training.steps = 0;
  std::vector<std::string> names = options.strategies;
  if (names.empty()) names = {"ring", "ps-sync", "ps-async"};
  if (!absl::c_linear_search(names, "single")) {
    names.insert(names.begin(), "single");
    plan.notes.push_back(Tr("single added: speed-up is relative to it"));
  }
  if (training.compute_ms.empty()) {
    training.compute_ms = absl::StrFormat("%.4g", 1e3 * probe.step_s);
    plan.notes.push_back(
        Tr("computing a step takes $0 ms (just measured); set --compute_ms to make times repeatable",
           training.compute_ms));
  }
  int64_t global_batch = 0;
  for (const int workers : options.workers) {
    for (const std::string& name : names) {
      PSRING_ASSIGN_OR_RETURN(Configuration configuration,
                              MakeConfiguration(name, workers, training, probe, cores));
      PSRING_RETURN_IF_ERROR(CheckVirtualStrategy(configuration.strategy, training));
      configuration.target_accuracy = options.target_accuracy;
      // Without communication, workers have different weights and so no common accuracy.
      if (name == "none") configuration.training.evaluate = false;
      global_batch = std::max(global_batch, configuration.workers * configuration.step_samples());
      AddIfNew(configuration, plan.cost);
    }
  }
  plan.rounds = std::max(1, options.repeats);
  const double trainings = plan.rounds + CountOfRates(options);
  int64_t samples = training.samples;
  if (samples == 0 && training.epochs > 0) {
    samples = static_cast<int64_t>(training.epochs * static_cast<double>(probe.samples));
  }
  const bool fitted = samples == 0 && training.steps == 0;
  if (fitted) {
    double per_sample_s = 0, fixed_s = 0;
    for (const Configuration& configuration : plan.cost) {
      per_sample_s += TrainingSeconds(configuration, probe, 1) - TrainingSeconds(configuration, probe, 0);
      fixed_s += TrainingSeconds(configuration, probe, 0) + EvaluationSeconds(configuration.training, probe);
    }
    const double fits = (0.8 * options.time_budget_s / trainings - fixed_s) / per_sample_s;
    const int64_t batches = static_cast<int64_t>(std::max(fits, 0.0)) / global_batch;
    const int64_t most = std::max<int64_t>(3 * probe.samples / global_batch, 20);
    samples = global_batch * std::clamp<int64_t>(batches, 20, most);
  }
  for (Configuration& configuration : plan.cost) {
    if (fitted) configuration.training.samples = samples;
    const int64_t total =
        samples > 0 ? samples
                    : configuration.training.steps * configuration.workers * configuration.step_samples();
    PlanCurve(static_cast<double>(total), probe, configuration);
    plan.round_s += ExpectedLaunchSeconds(configuration, probe, cores);
  }
  plan.expected_s = trainings * plan.round_s;
  AddUpdateWarnings(plan);
  AddLastNotes(options, TrNoop("this takes longer than --time_budget, because the given settings are kept"),
               plan);
  return plan;
}

}  // namespace psring
