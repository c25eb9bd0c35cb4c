#include "experiments/verbs/compare/compare.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "experiments/design/estimate.h"
#include "experiments/design/rates.h"
#include "experiments/engine/failure.h"
#include "experiments/engine/launch.h"
#include "experiments/verbs/compare/experiment.h"

namespace psring {
namespace {

// Runs everything that is planned. On an error, finished rounds and trainings are kept.
class PlanRun {
 public:
  PlanRun(const ExperimentFlags& flags, Experiment& experiment, Plan& plan)
      : flags_(flags), experiment_(experiment), plan_(plan) {}

  absl::Status Run() {
    PSRING_RETURN_IF_ERROR(SweepRates());
    if (plan_.simulated) return RunTrainingRounds();
    const double begin_s = experiment_.seconds();
    const int begin = experiment_.rounds_done();
    PSRING_RETURN_IF_ERROR(RunAllRounds("cost", flags_.options.training.seed));
    const int rounds = experiment_.rounds_done() - begin;
    const double slowness = rounds > 0 ? (experiment_.seconds() - begin_s) / (rounds * plan_.round_s) : 1;
    ShortenTrainings(slowness);
    return RunTrainings(std::max(1.0, slowness));
  }

  // Every round trains each configuration once.
  absl::Status RunTrainingRounds() { return RunAllRounds("training", std::nullopt); }

 private:
  // Until all are done or the time budget is too short for another one. `seed`: as that of RunRounds.
  absl::Status RunAllRounds(const std::string& part, std::optional<uint64_t> seed) {
    double longest_s = 0, begin_s = 0;
    return RunRounds(
        plan_.cost.size(), seed,
        [&]() -> std::optional<int> {
          if (experiment_.rounds_done() >= plan_.rounds) return std::nullopt;
          if (!MayStartRound(longest_s)) {
            experiment_.AddNote(Tr("$0 of $1 rounds: another round does not fit into the time budget of $2",
                                   experiment_.rounds_done(), plan_.rounds,
                                   HumanSeconds(flags_.options.time_budget_s)));
            return std::nullopt;
          }
          begin_s = experiment_.seconds();
          return experiment_.next_round();
        },
        [&](int round, size_t index) {
          std::string label;
          if (part == "cost") {
            label = Tr("round $0/$1  ", round + 1, plan_.rounds);
          } else if (plan_.rounds > 1) {
            label = Tr("seed $0  ", round + flags_.options.training.seed);
          }
          return experiment_.Run(plan_.cost[index], part, round, label);
        },
        [&] {
          const absl::Status ended = experiment_.EndRound();
          longest_s = std::max(longest_s, experiment_.seconds() - begin_s);
          return ended;
        });
  }

  // Whether a round that takes `round_s` may start.
  bool MayStartRound(double round_s) const {
    const int done = experiment_.rounds_done();
    // The trainings can be shortened; fewer rounds make the intervals much wider.
    const double reserved_s = done < kRoundsForNarrowIntervals ? 0 : plan_.accuracy_s;
    if (flags_.options.time_budget_given) return done == 0 || round_s <= experiment_.left_s() - reserved_s;
    const double left_s = flags_.options.time_budget_s - reserved_s - experiment_.seconds();
    return !plan_.rounds_fitted || done < kFewestRounds || round_s <= left_s;
  }

  // Trains the configurations of the accuracy part. `slowness`: the measured duration / the planned one.
  absl::Status RunTrainings(double slowness) {
    const double each_s =
        slowness * plan_.accuracy_s /
        std::max(1.0, TrainingsOfEach(flags_.options, plan_) * static_cast<double>(plan_.accuracy.size()));
    for (int repeat = 0; repeat < plan_.accuracy_repeats; ++repeat) {
      const std::string seed =
          plan_.accuracy_repeats > 1 ? Tr("seed $0  ", repeat + flags_.options.training.seed) : "";
      for (const Configuration& configuration : plan_.accuracy) {
        if (experiment_.HasTraining(configuration, repeat)) continue;
        if (each_s > experiment_.left_s()) {
          experiment_.AddNote(
              Tr("$0 and the trainings after it were not run: another training does not fit into the time "
                 "budget of $1",
                 configuration.name(), HumanSeconds(flags_.options.time_budget_s)));
          return absl::OkStatus();
        }
        PSRING_RETURN_IF_ERROR(
            experiment_.Run(configuration, "accuracy", repeat, absl::StrCat(Tr("accuracy  "), seed)));
      }
    }
    return absl::OkStatus();
  }

  // If the rounds took longer than planned, the trainings will too.
  void ShortenTrainings(double slowness) {
    const int64_t planned = plan_.accuracy.empty() ? 0 : plan_.accuracy.front().training.samples;
    const CompareOptions& options = flags_.options;
    const double left_s =
        options.time_budget_given ? experiment_.left_s() : options.time_budget_s - experiment_.seconds();
    if (!ShortenAccuracy(left_s, slowness, plan_)) return;
    plan_.accuracy_s = std::min(plan_.accuracy_s, std::max(0.0, left_s) / std::max(1.0, slowness));
    experiment_.AddNote(Tr("each training uses $0 $3 instead of $1, to fit into the time budget of $2",
                           plan_.accuracy.front().training.samples, planned,
                           HumanSeconds(options.time_budget_s), UnitOf(options.training.reads_text())));
    experiment_.set_configurations(plan_);
  }

  // Trains every configuration that has an accuracy with each of its rates, and picks the best.
  absl::StatusOr<std::vector<TriedRate>> TryRates() {
    std::vector<TriedRate> tried;
    for (const Configuration& configuration : plan_.simulated ? plan_.cost : plan_.accuracy) {
      if (!configuration.training.evaluate) continue;
      for (const double lr : RatesToTry(flags_.options, configuration)) {
        PSRING_ASSIGN_OR_RETURN(tried.emplace_back(), experiment_.TryRate(configuration, lr, "rates  "));
        PSRING_RETURN_IF_ERROR(experiment_.WriteRates(tried));
      }
    }
    PSRING_RETURN_IF_ERROR(PickRates(tried));
    PSRING_RETURN_IF_ERROR(experiment_.WriteRates(tried));
    return tried;
  }

  // Sets the rate of every configuration to the best of those tried.
  absl::Status SweepRates() {
    if (CountOfRates(flags_.options) == 0) return absl::OkStatus();
    // Those of a resumed run were tried before its rounds.
    PSRING_ASSIGN_OR_RETURN(const std::vector<TriedRate> tried,
                            experiment_.rounds_done() > 0 ? experiment_.ReadRates() : TryRates());
    for (auto* configurations : {&plan_.cost, &plan_.accuracy}) {
      for (Configuration& configuration : *configurations) UsePickedRate(tried, configuration);
    }
    experiment_.AddNote(
        Tr("learning rates selected on $0 held-out validation samples (all results: rates.csv): $1",
           flags_.options.training.validation, DescribeRates(tried)));
    experiment_.set_configurations(plan_);
    return absl::OkStatus();
  }

  const ExperimentFlags& flags_;
  Experiment& experiment_;
  Plan& plan_;
};

// Reports what was finished before `status`, the result of the plan.
absl::Status ReportWhatIsDone(const ExperimentFlags& flags, const absl::Status& status,
                              Experiment& experiment) {
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
    experiment.AddNote(Tr(
        "the time budget of $0 ended during a launch; the results include only finished rounds and trainings",
        budget));
    return experiment.Report(absl::StrCat("time budget of ", budget));
  }
  PSRING_RETURN_IF_ERROR(experiment.Report(std::string(status.message())));
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), absl::StrContains(status.message(), "\n") ? "\n" : Tr("; "),
                   Tr("the results are those of $0", RoundsText(experiment.rounds_done()))));
}

absl::StatusOr<Plan> PlanTraining(const ExperimentFlags& flags, const Prepared& prepared) {
  const CompareOptions& options = flags.options;
  const int cores = prepared.cores;
  PSRING_ASSIGN_OR_RETURN(Configuration configuration,
                          MakeConfiguration(options.strategies.front(), options.workers.front(),
                                            options.training, prepared.probe, cores));
  if (configuration.workers != options.workers.front()) {
    return InvalidTr(
        "--strategy $0 is one process of one rank; omit --workers and --ranks_per_process, or choose "
        "another strategy",
        configuration.strategy.name);
  }
  if (configuration.simulated()) PSRING_RETURN_IF_ERROR(CheckVirtualOptions(options));
  PSRING_RETURN_IF_ERROR(CheckVirtualStrategy(configuration.strategy, configuration.training));
  const std::string& backend = options.training.backend;
  if ((!backend.empty() && backend != configuration.backend()) ||
      (configuration.training.transport != options.training.transport && !flags.link.wanted())) {
    return InvalidTr(
        configuration.strategy.uses_group
            ? TrNoop("--backend or --transport has no effect on --strategy $0, which always uses $1; omit it")
            : TrNoop("--backend or --transport has no effect on --strategy $0, which has no collectives; "
                     "omit it"),
        configuration.strategy.name, configuration.backend());
  }
  if (configuration.training.straggler != options.training.straggler ||
      configuration.training.jitter_ms != options.training.jitter_ms) {
    return InvalidTr(
        "--straggler and --jitter_ms have no effect on --strategy $0, the undisturbed reference; omit them",
        configuration.strategy.name);
  }
  Plan plan;
  plan.rounds = std::max(1, options.repeats);
  TrainingOptions& training = configuration.training;
  if (training.steps == 0 && training.samples == 0 && training.epochs == 0) training.epochs = 1;
  configuration.target_accuracy = options.target_accuracy;
  plan.simulated = configuration.simulated();
  if (plan.simulated && training.compute_ms.empty()) {
    training.compute_ms = absl::StrFormat("%.4g", 1e3 * prepared.probe.step_s);
    plan.notes.push_back(
        Tr("computing a step takes $0 ms (just measured); set --compute_ms to make times repeatable",
           training.compute_ms));
  }
  if (options.target_accuracy > 0) {
    const double samples =
        training.steps > 0
            ? static_cast<double>(training.steps * configuration.replicas() * configuration.step_samples())
        : training.samples > 0 ? static_cast<double>(training.samples)
                               : training.epochs * static_cast<double>(prepared.probe.samples);
    PlanCurve(samples, prepared.probe, configuration);
  }
  plan.round_s = ExpectedLaunchSeconds(configuration, prepared.probe, cores);
  plan.expected_s = plan.rounds * plan.round_s;
  if (std::ranges::count(flags.settled, kSettledRing) > 0) {
    plan.notes.push_back(
        configuration.replicas() > 1
            ? Tr("--strategy ring by default: there are $0 replicas", configuration.replicas())
            : Tr("--strategy ring by default: the $0 workers of a sequence add up their gradients",
                 training.cp));
  }
  for (const std::string& warning : configuration.update.warnings) plan.notes.push_back(warning);
  if (const std::string text = DescribeDisturbances(configuration.training); !text.empty()) {
    plan.notes.push_back(text);
  }
  if (configuration.oversubscribed) {
    plan.notes.push_back(Tr("$0 workers share $1 $2 (oversubscribed)", configuration.workers, cores,
                            cores == 1 ? "core" : "cores"));
  }
  if (options.time_budget_given && plan.expected_s > options.time_budget_s) {
    return InvalidTr(
        "this would take about $0, more than --time_budget; reduce --epochs, --samples or --steps",
        HumanSeconds(plan.expected_s));
  }
  plan.cost = {configuration};
  AddClippingNote(plan);
  AddLayoutNote(plan);
  AddPipelineNotes(plan);
  return plan;
}

// Rejects what does not work on several machines.
absl::Status CheckSpread(const Configuration& configuration, const ExperimentFlags& flags) {
  PSRING_RETURN_IF_ERROR(CheckOnNodes({configuration}, flags));
  const NodeLayout layout = flags.nodes.layout();
  if (!flags.nodes.several() || configuration.processes() == layout.capacity()) return absl::OkStatus();
  return InvalidArgument(configuration.name(), " on ", layout.nodes - layout.server_nodes, " machines of ",
                         layout.per_node * flags.options.training.ranks_per_process,
                         ": every machine must have the same number of workers; set --nproc_per_node");
}

absl::Status Train(const ExperimentFlags& asked, Nodes* nodes, const Interrupt& interrupt, Display& display) {
  ExperimentFlags flags = asked;
  PSRING_RETURN_IF_ERROR(ResolveResume(flags.options.training));
  PSRING_ASSIGN_OR_RETURN(Prepared prepared, Prepare(flags, "train", interrupt, display));
  prepared.site.nodes = nodes;
  PSRING_ASSIGN_OR_RETURN(Plan plan, PlanTraining(flags, prepared));
  PSRING_RETURN_IF_ERROR(TakePlanOf(flags, plan));
  PSRING_RETURN_IF_ERROR(CheckSpread(plan.cost.front(), flags));
  PSRING_RETURN_IF_ERROR(CheckMeasured(prepared, plan));
  const Configuration& configuration = plan.cost.front();
  const TrainingOptions& training = configuration.training;
  display.Say(training.workload.empty()
                  ? Tr("training:  $0, $1 on $2, $3, lr $4, expected $5", configuration.name(),
                       configuration.model.name, training.data, configuration.update.optimizer,
                       configuration.update.lr, HumanSeconds(plan.expected_s))
                  : Tr("training:  $0, $1, expected $2", configuration.name(), configuration.model.name,
                       HumanSeconds(plan.expected_s)));
  AddMachinesNote(prepared.site, plan);
  for (const std::string& note : plan.notes) display.Note(note);
  if (flags.dry_run) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Experiment> experiment,
                          Experiment::Start(flags, "train", prepared, plan, nullptr, interrupt, display));
  const absl::Status ran = PlanRun(flags, *experiment, plan).RunTrainingRounds();
  if (absl::IsOutOfRange(ran)) {  // the resumed training was finished
    display.Say(std::string(ran.message()));
    return absl::OkStatus();
  }
  if (!ran.ok()) return experiment->rounds_done() == 0 ? experiment->WithoutResults(ran) : ran;
  return experiment->Report("");
}

}  // namespace

absl::StatusOr<std::string> Compare(const ExperimentFlags& flags, const Interrupt& interrupt,
                                    Display& display, Nodes* nodes) {
  PSRING_ASSIGN_OR_RETURN(Prepared prepared, Prepare(flags, "compare", interrupt, display));
  prepared.site.nodes = nodes;
  const bool simulated = flags.options.training.clock == "virtual";
  const double spent_s = 1e-9 * (MonotonicNanos() - prepared.begin_ns);
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
  PSRING_RETURN_IF_ERROR(ReportWhatIsDone(flags, PlanRun(flags, *experiment, plan).Run(), *experiment));
  return prepared.claim->path();
}

int RunCompare(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = RunOnNodes(flags, interrupt, display, [&](Nodes* nodes) {
    return Compare(flags, interrupt, display, nodes).status();
  });
  return EndOfVerb("compare", status, flags.nodes.node == 0 && flags.resume.empty(), display);
}

int RunTrain(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = RunOnNodes(
      flags, interrupt, display, [&](Nodes* nodes) { return Train(flags, nodes, interrupt, display); });
  return EndOfVerb("train", status, flags.nodes.node == 0, display);
}

}  // namespace psring
