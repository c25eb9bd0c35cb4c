#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/compare/checkpoints.h"
#include "experiments/compare/compare.h"
#include "experiments/compare/experiment.h"
#include "experiments/compare/on_nodes.h"
#include "experiments/engine/failure.h"
#include "experiments/plan/estimate.h"
#include "experiments/plan/plan.h"
#include "experiments/plan/plan_text.h"

namespace psring {
namespace {

absl::StatusOr<Plan> PlanTraining(const ExperimentFlags& flags, const Prepared& prepared) {
  const CompareOptions& options = flags.options;
  const int cores = prepared.cores;
  PSRING_ASSIGN_OR_RETURN(Configuration configuration,
                          MakeConfiguration(options.strategies.front(), options.workers.front(),
                                            options.training, prepared.probe, cores));
  if (configuration.workers != options.workers.front()) {
    return absl::InvalidArgumentError(
        Tr("--strategy $0 is one process of one rank; omit --workers and --ranks_per_process, or choose "
           "another strategy",
           configuration.strategy.name));
  }
  if (configuration.simulated()) PSRING_RETURN_IF_ERROR(CheckVirtualOptions(options));
  PSRING_RETURN_IF_ERROR(CheckVirtualStrategy(configuration.strategy, configuration.training));
  const std::string& backend = options.training.backend;
  if ((!backend.empty() && backend != configuration.backend()) ||
      (configuration.training.transport != options.training.transport && !flags.link.wanted())) {
    return absl::InvalidArgumentError(Tr(
        configuration.strategy.uses_group
            ? TrNoop("--backend or --transport has no effect on --strategy $0, which always uses $1; omit it")
            : TrNoop("--backend or --transport has no effect on --strategy $0, which has no collectives; "
                     "omit it"),
        configuration.strategy.name, configuration.backend()));
  }
  if (configuration.training.straggler != options.training.straggler ||
      configuration.training.jitter_ms != options.training.jitter_ms) {
    return absl::InvalidArgumentError(Tr(
        "--straggler and --jitter_ms have no effect on --strategy $0, the undisturbed reference; omit them",
        configuration.strategy.name));
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
            ? static_cast<double>(training.steps * configuration.workers * configuration.step_samples())
        : training.samples > 0 ? static_cast<double>(training.samples)
                               : training.epochs * static_cast<double>(prepared.probe.samples);
    PlanCurve(samples, prepared.probe, configuration);
  }
  plan.round_s = ExpectedLaunchSeconds(configuration, prepared.probe, cores);
  plan.expected_s = plan.rounds * plan.round_s;
  for (const std::string& warning : configuration.update.warnings) plan.notes.push_back(warning);
  if (const std::string text = DescribeDisturbances(configuration.training); !text.empty()) {
    plan.notes.push_back(text);
  }
  if (configuration.oversubscribed) {
    plan.notes.push_back(Tr("$0 workers share $1 $2 (oversubscribed)", configuration.workers, cores,
                            cores == 1 ? "core" : "cores"));
  }
  if (options.time_budget_given && plan.expected_s > options.time_budget_s) {
    return absl::InvalidArgumentError(
        Tr("this would take about $0, more than --time_budget; reduce --epochs, --samples or --steps",
           HumanSeconds(plan.expected_s)));
  }
  plan.cost = {configuration};
  AddClippingNote(plan);
  AddLayoutNote(plan);
  return plan;
}

// Rejects what does not work on several machines.
absl::Status CheckSpread(const Configuration& configuration, const ExperimentFlags& flags) {
  PSRING_RETURN_IF_ERROR(CheckOnNodes({configuration}, flags));
  const NodeLayout layout = flags.nodes.layout();
  if (!flags.nodes.several() || configuration.processes() == layout.capacity()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(configuration.name(), " on ", layout.nodes - layout.server_nodes, " machines of ",
                   layout.per_node * flags.options.training.ranks_per_process,
                   ": every machine must have the same number of workers; set --nproc_per_node"));
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
  for (int repeat = 0; repeat < plan.rounds; ++repeat) {
    const std::string label = plan.rounds > 1 ? Tr("seed $0  ", repeat + configuration.training.seed) : "";
    const absl::Status ran = experiment->Run(configuration, "training", repeat, label);
    if (absl::IsOutOfRange(ran)) {  // the resumed training was finished
      display.Say(std::string(ran.message()));
      return absl::OkStatus();
    }
    if (!ran.ok()) return repeat == 0 ? experiment->WithoutResults(ran) : ran;
    PSRING_RETURN_IF_ERROR(experiment->EndRound());
  }
  return experiment->Report("");
}

}  // namespace

int RunTrain(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = RunOnNodes(
      flags, interrupt, display, [&](Nodes* nodes) { return Train(flags, nodes, interrupt, display); });
  if (status.ok()) return 0;
  return ReportFailure("train", flags.nodes.node == 0 ? WithNothingKept(status) : status, display);
}

}  // namespace psring
