#include "experiments/compare/compare.h"

#include <algorithm>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "experiments/compare/confirm.h"
#include "experiments/compare/experiment.h"
#include "experiments/compare/on_nodes.h"
#include "experiments/engine/failure.h"
#include "experiments/plan/budget.h"
#include "experiments/plan/plan.h"
#include "experiments/plan/plan_text.h"
#include "experiments/plan/rates.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

void AddNote(const std::string& note, Experiment& experiment, Display& display) {
  experiment.note(note);
  display.Note(note);
}

// Whether a round that takes `round_s` may start.
bool MayStartRound(const ExperimentFlags& flags, const Plan& plan, double round_s,
                   const Experiment& experiment) {
  const int done = experiment.rounds_done();
  // The trainings can be shortened; fewer rounds make the intervals much wider.
  const double reserved_s = done < kRoundsForNarrowIntervals ? 0 : plan.accuracy_s;
  if (flags.options.time_budget_given) return done == 0 || round_s <= experiment.left_s() - reserved_s;
  const double left_s = flags.options.time_budget_s - reserved_s - experiment.seconds();
  return !plan.rounds_fitted || done < kFewestRounds || round_s <= left_s;
}

// Runs rounds, each by `run_round`, until all are done or the time budget is too short for another one.
absl::Status RunRounds(const ExperimentFlags& flags, const Plan& plan,
                       absl::FunctionRef<absl::Status(int round)> run_round, Experiment& experiment,
                       Display& display) {
  double longest_s = 0;
  while (experiment.rounds_done() < plan.rounds) {
    const int round = experiment.next_round();
    if (!MayStartRound(flags, plan, longest_s, experiment)) {
      AddNote(Tr("$0 of $1 rounds: another round does not fit into the time budget of $2",
                 experiment.rounds_done(), plan.rounds, HumanSeconds(flags.options.time_budget_s)),
              experiment, display);
      return absl::OkStatus();
    }
    const double begin_s = experiment.seconds();
    PSRING_RETURN_IF_ERROR(run_round(round));
    PSRING_RETURN_IF_ERROR(experiment.EndRound());
    longest_s = std::max(longest_s, experiment.seconds() - begin_s);
  }
  return absl::OkStatus();
}

// One round of the cost part.
absl::Status RunCostRound(const ExperimentFlags& flags, const Plan& plan, int round, Experiment& experiment) {
  for (int index : RoundOrder(static_cast<int>(plan.cost.size()), flags.options.training.seed, round)) {
    PSRING_RETURN_IF_ERROR(experiment.Run(plan.cost[static_cast<size_t>(index)], "cost", round,
                                          Tr("round $0/$1  ", round + 1, plan.rounds)));
  }
  return absl::OkStatus();
}

// Trains the configurations of the accuracy part. `slowness`: the measured duration / the planned one.
absl::Status RunTrainings(const ExperimentFlags& flags, const Plan& plan, double slowness,
                          Experiment& experiment, Display& display) {
  const double each_s =
      slowness * plan.accuracy_s /
      std::max(1.0, TrainingsOfEach(flags.options, plan) * static_cast<double>(plan.accuracy.size()));
  for (int repeat = 0; repeat < plan.accuracy_repeats; ++repeat) {
    const std::string seed =
        plan.accuracy_repeats > 1 ? Tr("seed $0  ", repeat + flags.options.training.seed) : "";
    for (const Configuration& configuration : plan.accuracy) {
      if (experiment.HasTraining(configuration, repeat)) continue;
      if (each_s > experiment.left_s()) {
        AddNote(Tr("$0 and the trainings after it were not run: another training does not fit into the time "
                   "budget of $1",
                   configuration.name(), HumanSeconds(flags.options.time_budget_s)),
                experiment, display);
        return absl::OkStatus();
      }
      PSRING_RETURN_IF_ERROR(
          experiment.Run(configuration, "accuracy", repeat, absl::StrCat(Tr("accuracy  "), seed)));
    }
  }
  return absl::OkStatus();
}

// If the rounds took longer than planned, the trainings will too.
void ShortenTrainings(const ExperimentFlags& flags, double slowness, Experiment& experiment, Display& display,
                      Plan& plan) {
  const int64_t planned = plan.accuracy.empty() ? 0 : plan.accuracy.front().training.samples;
  const double left_s = flags.options.time_budget_given ? experiment.left_s()
                                                        : flags.options.time_budget_s - experiment.seconds();
  if (!ShortenAccuracy(left_s, slowness, plan)) return;
  plan.accuracy_s = std::min(plan.accuracy_s, std::max(0.0, left_s) / std::max(1.0, slowness));
  AddNote(Tr("each training uses $0 $3 instead of $1, to fit into the time budget of $2",
             plan.accuracy.front().training.samples, planned, HumanSeconds(flags.options.time_budget_s),
             UnitOf(flags.options.training.reads_text())),
          experiment, display);
  experiment.set_configurations(plan);
}

// Trains every configuration that has an accuracy with each of its rates, and picks the best.
absl::StatusOr<std::vector<TriedRate>> TryRates(const ExperimentFlags& flags, const Plan& plan,
                                                Experiment& experiment) {
  std::vector<TriedRate> tried;
  for (const Configuration& configuration : plan.simulated ? plan.cost : plan.accuracy) {
    if (!configuration.training.evaluate) continue;
    for (const double lr : RatesToTry(flags.options, configuration)) {
      PSRING_ASSIGN_OR_RETURN(const TriedRate rate, experiment.TryRate(configuration, lr, "rates  "));
      tried.push_back(rate);
      PSRING_RETURN_IF_ERROR(experiment.WriteRates(tried));
    }
  }
  PSRING_RETURN_IF_ERROR(PickRates(tried));
  PSRING_RETURN_IF_ERROR(experiment.WriteRates(tried));
  return tried;
}

// Sets the rate of every configuration to the best of those tried.
absl::Status SweepRates(const ExperimentFlags& flags, Experiment& experiment, Display& display, Plan& plan) {
  if (CountOfRates(flags.options) == 0) return absl::OkStatus();
  std::vector<TriedRate> tried;
  if (experiment.rounds_done() > 0) {  // of a resumed run
    PSRING_ASSIGN_OR_RETURN(tried, experiment.ReadRates());
  } else {
    PSRING_ASSIGN_OR_RETURN(tried, TryRates(flags, plan, experiment));
  }
  for (auto* configurations : {&plan.cost, &plan.accuracy}) {
    for (Configuration& configuration : *configurations) UsePickedRate(tried, configuration);
  }
  AddNote(Tr("learning rates selected on $0 held-out validation samples (all results: rates.csv): $1",
             flags.options.training.validation, DescribeRates(tried)),
          experiment, display);
  experiment.set_configurations(plan);
  return absl::OkStatus();
}

// Simulated time: every round trains each configuration once.
absl::Status RunSimulatedRound(const ExperimentFlags& flags, const Plan& plan, int round,
                               Experiment& experiment) {
  const std::string label = plan.rounds > 1 ? Tr("seed $0  ", round + flags.options.training.seed) : "";
  for (const Configuration& configuration : plan.cost) {
    PSRING_RETURN_IF_ERROR(experiment.Run(configuration, "training", round, label));
  }
  return absl::OkStatus();
}

// Runs everything that is planned. On an error, finished rounds and trainings are kept.
absl::Status RunPlan(const ExperimentFlags& flags, Experiment& experiment, Display& display, Plan& plan) {
  PSRING_RETURN_IF_ERROR(SweepRates(flags, experiment, display, plan));
  const auto run_round = [&](int round) {
    return plan.simulated ? RunSimulatedRound(flags, plan, round, experiment)
                          : RunCostRound(flags, plan, round, experiment);
  };
  if (plan.simulated) return RunRounds(flags, plan, run_round, experiment, display);
  const double begin_s = experiment.seconds();
  const int begin = experiment.rounds_done();
  PSRING_RETURN_IF_ERROR(RunRounds(flags, plan, run_round, experiment, display));
  const int rounds = experiment.rounds_done() - begin;
  const double slowness = rounds > 0 ? (experiment.seconds() - begin_s) / (rounds * plan.round_s) : 1;
  ShortenTrainings(flags, slowness, experiment, display, plan);
  return RunTrainings(flags, plan, std::max(1.0, slowness), experiment, display);
}

// Reports what was finished before `status`, the result of RunPlan.
absl::Status ReportWhatIsDone(const ExperimentFlags& flags, const absl::Status& status,
                              Experiment& experiment, Display& display) {
  const std::string budget = HumanSeconds(flags.options.time_budget_s);
  const bool out_of_time = absl::IsDeadlineExceeded(status) && experiment.out_of_time();
  if (experiment.rounds_done() == 0 && out_of_time) {
    return absl::DeadlineExceededError(
        Tr("--time_budget $0 ended before the first round did, so there is nothing to compare; use a longer "
           "--time_budget, or fewer --strategies or --workers",
           budget));
  }
  if (experiment.rounds_done() == 0) return experiment.WithoutResults(status);
  if (status.ok()) {
    const bool cut = flags.options.time_budget_given && !experiment.all_done();
    return experiment.Report(cut ? absl::StrCat("time budget of ", budget) : "");
  }
  if (out_of_time) {
    AddNote(Tr("the time budget of $0 ended during a launch; the results include only finished rounds and "
               "trainings",
               budget),
            experiment, display);
    return experiment.Report(absl::StrCat("time budget of ", budget));
  }
  PSRING_RETURN_IF_ERROR(experiment.Report(std::string(status.message())));
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), absl::StrContains(status.message(), "\n") ? "\n" : Tr("; "),
                   Tr("the results are those of $0", RoundsText(experiment.rounds_done()))));
}

}  // namespace

absl::StatusOr<std::string> Compare(const ExperimentFlags& flags, const Interrupt& interrupt,
                                    Display& display, Nodes* nodes) {
  PSRING_ASSIGN_OR_RETURN(Prepared prepared, Prepare(flags, "compare", interrupt, display));
  prepared.site.nodes = nodes;
  const bool simulated = flags.options.training.clock == "virtual";
  const double spent_s = 1e-9 * static_cast<double>(MonotonicNanos() - prepared.begin_ns);
  CompareOptions options = flags.options;
  if (options.time_budget_given) options.time_budget_s = std::max(1.0, options.time_budget_s - spent_s);
  PSRING_ASSIGN_OR_RETURN(Plan plan,
                          (simulated ? MakeVirtualPlan : MakePlan)(options, prepared.probe, prepared.cores));
  std::optional<ResumedRun> resumed;
  if (!flags.resume.empty()) {
    PSRING_ASSIGN_OR_RETURN(resumed, ReadResumedRun(flags.resume));
    PSRING_RETURN_IF_ERROR(CheckSameConditions(*resumed, flags, prepared));
    PSRING_RETURN_IF_ERROR(ContinueRecordedPlan(resumed->plan, flags.options, plan));
  }
  PSRING_RETURN_IF_ERROR(TakePlanOf(flags, plan));
  if (!resumed && options.time_budget_given) {
    PSRING_RETURN_IF_ERROR(FitIntoBudget(flags.options, prepared.probe, prepared.cores, spent_s, plan));
  }
  PSRING_RETURN_IF_ERROR(CheckMeasured(prepared, plan));
  AddMachinesNote(prepared.site, plan);
  display.SayLines(DescribePlan(plan));
  PSRING_RETURN_IF_ERROR(ConfirmLongPlan(flags, prepared, spent_s, plan, interrupt, display));
  if (flags.dry_run) return "";
  PSRING_ASSIGN_OR_RETURN(
      const std::unique_ptr<Experiment> experiment,
      Experiment::Start(flags, "compare", prepared, plan, resumed ? &*resumed : nullptr, interrupt, display));
  PSRING_RETURN_IF_ERROR(
      ReportWhatIsDone(flags, RunPlan(flags, *experiment, display, plan), *experiment, display));
  return prepared.claim->path();
}

int RunCompare(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = RunOnNodes(flags, interrupt, display, [&](Nodes* nodes) {
    return Compare(flags, interrupt, display, nodes).status();
  });
  if (status.ok()) return 0;
  const bool keeps_nothing = flags.nodes.node == 0 && flags.resume.empty();
  return ReportFailure("compare", keeps_nothing ? WithNothingKept(status) : status, display);
}

}  // namespace psring
