#include "experiments/compare/compare.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "experiments/compare/experiment.h"
#include "experiments/plan/plan.h"
#include "experiments/plan/plan_text.h"
#include "experiments/plan/rates.h"
#include "experiments/stats/statistics.h"
#include "experiments/texts/plan.h"

namespace psring {
namespace {

// Runs rounds until all are done or another one would leave too little time for the accuracy part. Returns
// the number of rounds.
absl::StatusOr<int> RunRounds(const ExperimentFlags& flags, const Plan& plan, Experiment& experiment,
                              Display& display) {
  const uint64_t seed = flags.options.training.seed;
  double longest_s = 0;
  for (int round = 0; round < plan.rounds; ++round) {
    const double spent = experiment.seconds();
    // The trainings can be shortened; fewer rounds make the intervals much wider.
    const double reserved_s = round < kRoundsForNarrowIntervals ? 0 : plan.accuracy_s;
    const double left = flags.options.time_budget_s - reserved_s - spent;
    if (plan.rounds_fitted && round >= kFewestRounds && longest_s > left) {
      const std::string note = Say(flags.options.language, kRoundsCut, round, plan.rounds,
                                   HumanSeconds(flags.options.time_budget_s));
      experiment.note(note);
      display.Say(absl::StrCat(In(flags.options.language, kNoteLine), note));
      return round;
    }
    for (int index : RoundOrder(static_cast<int>(plan.cost.size()), seed, round)) {
      PSRING_RETURN_IF_ERROR(
          experiment.Run(plan.cost[static_cast<size_t>(index)], "cost", round,
                         Say(flags.options.language, kRoundLabel, round + 1, plan.rounds)));
    }
    longest_s = std::max(longest_s, experiment.seconds() - spent);
  }
  return plan.rounds;
}

// If the rounds took longer than planned, the trainings will too.
void ShortenTrainings(const ExperimentFlags& flags, int rounds, Experiment& experiment, Display& display,
                      Plan& plan) {
  const int64_t planned = plan.accuracy.empty() ? 0 : plan.accuracy.front().training.samples;
  const double slowness = experiment.seconds() / (rounds * plan.round_s);
  if (!ShortenAccuracy(flags.options.time_budget_s - experiment.seconds(), slowness, plan)) return;
  const std::string note =
      Say(flags.options.language, kTrainingsShortened, plan.accuracy.front().training.samples, planned,
          HumanSeconds(flags.options.time_budget_s));
  experiment.note(note);
  experiment.set_accuracy(plan.accuracy);
  display.Say(absl::StrCat(In(flags.options.language, kNoteLine), note));
}

// Tries all rates with each strategy and gives every configuration its best rate.
absl::Status SweepRates(const ExperimentFlags& flags, Experiment& experiment, Display& display, Plan& plan) {
  const std::vector<double>& lrs = flags.options.lrs;
  if (lrs.size() < 2) return absl::OkStatus();
  std::vector<TriedRate> tried;
  for (const Configuration& configuration : plan.simulated ? plan.cost : plan.accuracy) {
    if (!configuration.training.evaluate) continue;
    for (const double lr : lrs) {
      PSRING_ASSIGN_OR_RETURN(const TriedRate rate, experiment.TryRate(configuration, lr, "rates  "));
      tried.push_back(rate);
      PSRING_RETURN_IF_ERROR(experiment.WriteRates(tried));
    }
  }
  PSRING_RETURN_IF_ERROR(PickRates(tried));
  PSRING_RETURN_IF_ERROR(experiment.WriteRates(tried));
  for (auto* configurations : {&plan.cost, &plan.accuracy}) {
    for (Configuration& configuration : *configurations) UsePickedRate(tried, configuration);
  }
  const std::string note =
      Say(flags.options.language, kRatesPicked, flags.options.training.validation, DescribeRates(tried));
  plan.notes.push_back(note);
  display.Say(absl::StrCat(In(flags.options.language, kNoteLine), note));
  experiment.set_plan(plan);
  return absl::OkStatus();
}

// Simulated time: every round trains each configuration once.
absl::Status RunSimulated(const ExperimentFlags& flags, const Plan& plan, Experiment& experiment) {
  for (int round = 0; round < plan.rounds; ++round) {
    const std::string label =
        plan.rounds > 1 ? Say(flags.options.language, kSeedLabel, round + flags.options.training.seed) : "";
    for (const Configuration& configuration : plan.cost) {
      PSRING_RETURN_IF_ERROR(experiment.Run(configuration, "training", round, label));
    }
  }
  return experiment.Report(plan.rounds);
}

}  // namespace

absl::StatusOr<std::string> Compare(const ExperimentFlags& flags, const Interrupt& interrupt,
                                    Display& display) {
  if (!flags.options.training.resume.empty()) {
    return absl::InvalidArgumentError("--resume continues one training; use psring train");
  }
  PSRING_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(flags, "compare", interrupt, display));
  const bool simulated = flags.options.training.clock == "virtual";
  PSRING_ASSIGN_OR_RETURN(
      Plan plan, (simulated ? MakeVirtualPlan : MakePlan)(flags.options, prepared.catalog, prepared.probe,
                                                          prepared.machine.cores));
  PSRING_RETURN_IF_ERROR(TakePlanOf(flags, plan));
  PSRING_RETURN_IF_ERROR(CheckMeasured(prepared, plan));
  display.Say(DescribePlan(plan, flags.options.language));
  if (flags.dry_run) return "";
  const std::string folder = prepared.claim->path();
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Experiment> experiment,
                          Experiment::Start(flags, "compare", prepared, plan, interrupt, display));
  PSRING_RETURN_IF_ERROR(SweepRates(flags, *experiment, display, plan));
  if (plan.simulated) {
    PSRING_RETURN_IF_ERROR(RunSimulated(flags, plan, *experiment));
    return folder;
  }
  PSRING_ASSIGN_OR_RETURN(const int rounds, RunRounds(flags, plan, *experiment, display));
  ShortenTrainings(flags, rounds, *experiment, display, plan);
  for (int repeat = 0; repeat < plan.accuracy_repeats; ++repeat) {
    for (const Configuration& configuration : plan.accuracy) {
      const std::string seed = plan.accuracy_repeats > 1 ? Say(flags.options.language, kSeedLabel,
                                                               repeat + flags.options.training.seed)
                                                         : "";
      PSRING_RETURN_IF_ERROR(experiment->Run(configuration, "accuracy", repeat,
                                             absl::StrCat(In(flags.options.language, kAccuracyLabel), seed)));
    }
  }
  PSRING_RETURN_IF_ERROR(experiment->Report(rounds));
  return folder;
}

int RunCompare(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = Compare(flags, interrupt, display).status();
  return status.ok() ? 0 : ReportFailure("compare", status, display);
}

}  // namespace psring
