#include "experiments/design/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/design/estimate.h"
#include "experiments/design/rates.h"
#include "ring_worker/schedules/schedule.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

const char* const kDefaultCost[] = {"none", "ring", "ps-sync", "ps-async"};
const char* const kDefaultAccuracy[] = {"single", "ring", "ps-async"};

constexpr int kMaxRounds = 12;
constexpr double kCostShare = 0.55;       // of the time budget; the accuracy part gets the rest
constexpr double kMaxCostShare = 0.85;    // if the cost part needs it for kRoundsForNarrowIntervals
constexpr double kMeasuredSeconds = 0.7;  // duration of one process's measured steps in a cost launch

absl::StatusOr<TrainedModel> ModelOf(const TrainingOptions& training, int64_t parameters) {
  TrainedModel model{.name = absl::StrCat(training.workload, " (replayed)"), .parameters = parameters};
  if (!training.workload.empty()) return model;
  PSRING_ASSIGN_OR_RETURN(const ModelRow* row, FindModelRow(training.model));
  model.name = row->name;
  model.has_tables = row->has_tables;
  for (const auto& [size, given] : {std::pair("width", training.width),
                                    {"layers", training.layers},
                                    {"heads", training.heads},
                                    {"context", training.context}}) {
    if (given != 0) absl::StrAppend(&model.name, " of ", size, " ", given);
  }
  if (training.dropout > 0) absl::StrAppend(&model.name, " with dropout ", training.dropout);
  return model;
}

std::vector<std::string> CostStrategies(const CompareOptions& options, bool has_tables,
                                        std::vector<std::string>& notes) {
  std::vector<std::string> names = {"single"};
  if (options.strategies.empty()) {
    const std::vector<std::string> others = ComparedStrategies(options, has_tables);
    names.insert(names.end(), others.begin(), others.end());
    return names;
  }
  const bool only_single = options.strategies == std::vector<std::string>{"single"};
  std::vector<std::string> added;
  if (!absl::c_linear_search(options.strategies, "single")) added.push_back("single");
  if (!only_single) names.push_back("none");
  if (!only_single && !absl::c_linear_search(options.strategies, "none")) added.push_back("none");
  for (const std::string& name : options.strategies) {
    if (!absl::c_linear_search(names, name)) names.push_back(name);
  }
  if (!added.empty()) {
    notes.push_back(Tr("$0 added: speed-up is relative to single, cost is relative to none",
                       absl::StrJoin(added, Tr(" and "))));
  }
  return names;
}

std::vector<std::string> AccuracyStrategies(const CompareOptions& options, bool has_tables) {
  const bool tunes = !options.lr_factors.empty();  // then every strategy is trained
  if (options.strategies.empty() && !tunes) {
    return {std::begin(kDefaultAccuracy), std::end(kDefaultAccuracy)};
  }
  std::vector<std::string> names = {"single"};
  for (const std::string& name : ComparedStrategies(options, has_tables)) {
    // Without communication, workers have different weights and so no common accuracy.
    if (name != "none" && !absl::c_linear_search(names, name)) names.push_back(name);
  }
  return names;
}

// The largest count of at least 2 with a core per worker, else the smallest of at least 2.
int AccuracyWorkers(const std::vector<int>& workers, int cores) {
  int best = 0;
  for (int count : workers) {
    if (count >= 2 && count <= cores) best = std::max(best, count);
  }
  if (best > 0) return best;
  for (int count : workers) {
    if (count >= 2 && (best == 0 || count < best)) best = count;
  }
  return best > 0 ? best : workers.front();
}

absl::StatusOr<std::vector<Configuration>> Configurations(const std::vector<std::string>& strategies,
                                                          const std::vector<int>& workers,
                                                          const CompareOptions& options,
                                                          const TrainingOptions& training, const Probe& probe,
                                                          int cores) {
  std::vector<Configuration> configurations;
  for (int count : workers) {
    for (const std::string& name : strategies) {
      for (int servers : options.servers) {
        for (const std::string& wire : options.server_wires) {
          TrainingOptions of_one = training;
          of_one.servers = servers;
          of_one.server_wire = wire;
          PSRING_ASSIGN_OR_RETURN(const Configuration configuration,
                                  MakeConfiguration(name, count, of_one, probe, cores));
          AddIfNew(configuration, configurations);
        }
      }
    }
  }
  std::ranges::stable_sort(
      configurations, [](const Configuration& a, const Configuration& b) { return a.workers < b.workers; });
  return configurations;
}

int64_t LargestGlobalBatch(const std::vector<Configuration>& configurations) {
  int64_t most = 1;
  for (const Configuration& configuration : configurations) {
    most = std::max(most, configuration.replicas() * configuration.step_samples());
  }
  return most;
}

void PlanCost(const CompareOptions& options, const Probe& probe, int cores, Plan& plan) {
  const TrainingOptions& training = options.training;
  plan.warmup_steps = training.warmup_steps > 0 ? static_cast<int>(training.warmup_steps) : 3;
  plan.steps = training.steps > 0
                   ? static_cast<int>(training.steps)
                   : std::clamp(static_cast<int>(kMeasuredSeconds / probe.step_s), kFewestSteps, 40);
  SetSteps(plan.steps, probe, cores, plan);
  plan.rounds_fitted = options.repeats == 0;
  plan.rounds = options.repeats;
  if (!plan.rounds_fitted) return;
  const double budget = kCostShare * options.time_budget_s;
  // If time is short, shortens rounds before it removes any, because intervals are over rounds.
  while (training.steps == 0 && plan.steps > kFewestSteps &&
         plan.round_s * kRoundsForNarrowIntervals > budget) {
    SetSteps(std::max(kFewestSteps, plan.steps * 3 / 4), probe, cores, plan);
  }
  // Enough rounds to name a winner take precedence over the accuracy trainings.
  const bool fits = plan.round_s * kRoundsForNarrowIntervals <= kMaxCostShare * options.time_budget_s;
  plan.rounds = std::clamp(static_cast<int>(budget / plan.round_s),
                           fits ? kRoundsForNarrowIntervals : kFewestRounds, kMaxRounds);
}

void PlanAccuracy(const CompareOptions& options, const Probe& probe, int cores, Plan& plan) {
  const TrainingOptions& training = options.training;
  plan.accuracy_repeats = std::max(1, options.repeats);
  plan.accuracy_fitted = training.samples == 0 && training.epochs == 0;
  const double trainings = TrainingsOfEach(options, plan);
  const double fixed_s = AccuracySeconds(plan, 0, 1, probe, cores);
  const double per_sample_s = AccuracySeconds(plan, 1, 1, probe, cores) - fixed_s;
  const int64_t global_batch = LargestGlobalBatch(plan.accuracy);
  int64_t samples = training.samples;
  if (plan.accuracy_fitted) {
    const double left = (options.time_budget_s - plan.rounds * plan.round_s) * 0.9 / trainings - fixed_s;
    const double epochs = left / per_sample_s / static_cast<double>(probe.samples);
    const int64_t wanted = epochs >= 1
                               ? probe.samples * static_cast<int64_t>(std::min(3.0, std::floor(epochs)))
                               : static_cast<int64_t>(epochs * static_cast<double>(probe.samples));
    samples = std::max(wanted, 20 * global_batch) / global_batch * global_batch;
  } else if (samples == 0) {
    samples = static_cast<int64_t>(training.epochs * static_cast<double>(probe.samples));
  }
  plan.accuracy_s = AccuracySeconds(plan, samples, trainings, probe, cores);
  for (Configuration& configuration : plan.accuracy) {
    configuration.training.steps = 0;
    configuration.training.warmup_steps = 0;
    if (plan.accuracy_fitted) configuration.training.samples = samples;
    PlanCurve(static_cast<double>(samples), probe, configuration);
  }
}

// Resets flags that do not apply to the configuration's strategy. --backend replaces the implementation of
// native schedules only; NCCL chooses its transport itself.
void ResetOtherStrategiesFlags(Configuration& configuration) {
  TrainingOptions& training = configuration.training;
  const bool has_group = configuration.strategy.uses_group;
  if (!has_group || configuration.strategy.backend != "native") training.backend.clear();
  if (configuration.strategy.single_process) {  // the reference is undisturbed
    training.straggler = "none";
    training.jitter_ms = "none";
  }
  const bool sends = configuration.strategy.communicates();
  if ((!sends && ReplicaRanks(training) == 1) || configuration.backend() == "nccl")
    training.transport = "auto";
  if (!configuration.strategy.uses_servers) LeaveServersOut(training);
  if (!configuration.strategy.shards_weights) training.reshard = TrainingOptions().reshard;
  if (!configuration.strategy.shards_updates || configuration.gradient_ranks() == 1) training.dp_shard = 0;
  if (configuration.strategy.has_only_rows_on_servers()) {
    const TrainingOptions standard;
    training.ps_schedule = standard.ps_schedule;
    if (training.on_worker_loss == "continue") training.on_worker_loss = standard.on_worker_loss;
  }
  // One worker has nothing to add up.
  if (!configuration.strategy.can_aggregate() || configuration.ranks() == 1)
    training.local_aggregation = false;
  if (!sends) training.wire = "float32";
  if (!configuration.strategy.asynchronous()) training.staleness_lr = "none";
}

void AddWarnings(int cores, Plan& plan) {
  AddUpdateWarnings(plan);
  AddClippingNote(plan);
  AddLayoutNote(plan);
  int oversubscribed = 0;
  for (const Configuration& configuration : plan.cost) {
    if (configuration.oversubscribed) oversubscribed = std::max(oversubscribed, configuration.workers);
  }
  if (oversubscribed > 0) {
    plan.notes.push_back(
        Tr("$0 workers share $1 $2 (oversubscribed): their speeds are compared, but the table gives no "
           "speed-up or scaling efficiency for them",
           oversubscribed, cores, cores == 1 ? "core" : "cores"));
  }
}

}  // namespace

double TrainingsOfEach(const CompareOptions& options, const Plan& plan) {
  return plan.accuracy_repeats + CountOfRates(options);
}

double AccuracySeconds(const Plan& plan, int64_t samples, double trainings, const Probe& probe, int cores) {
  double sum = 0;
  for (const Configuration& configuration : plan.accuracy) {
    sum += LaunchOverheadSeconds(configuration, probe, cores) +
           EvaluationSeconds(configuration.training, probe) +
           static_cast<double>(samples) / SamplesPerSecond(configuration, probe, cores);
  }
  return sum * trainings;
}

void SetSteps(int steps, const Probe& probe, int cores, Plan& plan) {
  plan.steps = steps;
  plan.round_s = 0;
  for (Configuration& configuration : plan.cost) {
    configuration.training.warmup_steps = plan.warmup_steps;
    configuration.training.steps = plan.steps;
    plan.round_s += ExpectedLaunchSeconds(configuration, probe, cores);
  }
}

void AddIfNew(const Configuration& configuration, std::vector<Configuration>& configurations) {
  const auto same = [&](const Configuration& other) { return other.folder() == configuration.folder(); };
  if (absl::c_none_of(configurations, same)) configurations.push_back(configuration);
}

void AddUpdateWarnings(Plan& plan) {
  for (const Configuration& configuration : plan.cost) {
    for (const std::string& warning : configuration.update.warnings) {
      if (!absl::c_linear_search(plan.notes, warning)) plan.notes.push_back(warning);
    }
  }
}

void AddLastNotes(const CompareOptions& options, const char* over_budget, Plan& plan) {
  const std::string text = DescribeDisturbances(options.training);
  if (!text.empty()) plan.notes.push_back(Tr("$0; single, the reference, is undisturbed", text));
  if (plan.expected_s > options.time_budget_s && !options.time_budget_given) {
    plan.notes.push_back(Tr(over_budget));
  }
}

void AddClippingNote(Plan& plan) {
  const bool clips = absl::c_any_of(plan.cost, [](const Configuration& configuration) {
    return configuration.servers() > 0 && configuration.training.clip_norm > 0;
  });
  if (clips) {
    plan.notes.push_back(
        Tr("--clip_norm: a server needs the entire gradient before it updates, so no weights return during "
           "the backward pass"));
  }
}

void AddLayoutNote(Plan& plan) {
  int each = 1;
  bool beside_worker = false, is_ring = false;
  for (const Configuration& configuration : plan.cost) {
    const bool shares = configuration.per_machine > 1 && configuration.training.transport != "tcp";
    is_ring = is_ring || (NeedsRanksPerNode(configuration.strategy.algorithm) && !shares);
    each = std::max(each, configuration.training.ranks_per_process);
    beside_worker = beside_worker || configuration.has_worker_without_link();
  }
  if (each > 1) plan.notes.push_back(Tr("each process runs $0 workers as threads", each));
  if (is_ring)
    plan.notes.push_back(
        Tr("no workers share memory here, so hierarchical is a ring; add --ranks_per_process K, or name the "
           "workers per machine, as in hierarchical:2"));
  if (beside_worker) {
    plan.notes.push_back(
        Tr("servers are on worker 0's machine (--server_placement rank0), so worker 0 uses no link and is "
           "faster than the others where workers do not wait for each other"));
  }
}

std::vector<std::string> ComparedStrategies(const CompareOptions& options, bool has_tables) {
  if (!options.strategies.empty()) return options.strategies;
  std::vector<std::string> names = {std::begin(kDefaultCost), std::end(kDefaultCost)};
  if (has_tables) names.push_back("hybrid");
  return names;
}

void PlanCurve(double samples, const Probe& probe, Configuration& configuration) {
  TrainingOptions& training = configuration.training;
  // Tables are evaluated only at the end.
  if (training.eval_every > 0 || !training.evaluate || configuration.model.has_tables) return;
  // A few points if they are cheap; for a target accuracy, one per 5% of the training.
  constexpr double kTargetPoints = 20;
  constexpr double kSnapshotBytes = 512 << 20;  // of copies of the weights that a live trainer keeps
  const double kept =
      configuration.simulated() ? kTargetPoints : std::floor(kSnapshotBytes / (4.0 * probe.parameters));
  const double steps = samples / static_cast<double>(configuration.replicas() * configuration.step_samples() *
                                                     std::max(1, training.reference_workers));
  const double train_s = steps * configuration.replicas() * ComputeSeconds(training, probe);
  const double spare = 0.1 * train_s / std::max(EvaluationSeconds(training, probe), 1e-9);
  const double points = configuration.target_accuracy > 0 ? std::clamp(kept, 1.0, kTargetPoints)
                                                          : std::clamp(std::floor(spare), 0.0, 4.0) + 1;
  if (points > 1 && steps >= 2 * points) {
    training.eval_every = static_cast<int64_t>(std::ceil(steps / points));
  }
}

void SetBatch(int workers, TrainingOptions& training) {
  if (training.global_batch == 0) return;
  const int64_t shares = int64_t{workers / ReplicaRanks(training)} * training.micro_batches *
                         std::max(1, training.reference_workers);
  training.batch = std::max<int64_t>(1, training.global_batch / shares);
}

absl::StatusOr<Configuration> MakeConfiguration(const std::string& strategy, int workers,
                                                const TrainingOptions& training, const Probe& probe,
                                                int cores) {
  PSRING_RETURN_IF_ERROR(CheckPartsOf(training, probe));
  Configuration configuration;
  PSRING_ASSIGN_OR_RETURN(configuration.strategy, FindStrategy(strategy));
  PSRING_ASSIGN_OR_RETURN(configuration.model, ModelOf(training, probe.parameters));
  const bool one_worker = configuration.strategy.single_process && !configuration.strategy.replicates;
  configuration.workers = one_worker ? ReplicaRanks(training) : workers;  // of one replica
  configuration.training = training;
  configuration.predictions = probe.predictions;
  if (configuration.strategy.replicates) configuration.training.replicas = workers;
  if (!probe.transport.empty()) configuration.training.transport = probe.transport;
  SetBatch(configuration.workers, configuration.training);
  configuration.training.compute_speedup /= training.time_scale;
  // Fewer ranks than a process holds share one process.
  configuration.training.ranks_per_process = std::min(training.ranks_per_process, configuration.ranks());
  configuration.training.strategy = configuration.strategy.name;
  configuration.per_machine =
      probe.per_machine > 0 ? std::min(probe.per_machine, configuration.ranks()) : configuration.ranks();
  configuration.on_machines = probe.on_machines;
  if (probe.spread_over > 0) {
    const int processes = configuration.processes(), over = std::min(probe.spread_over, processes);
    configuration.per_machine = (processes + over - 1) / over * configuration.training.ranks_per_process;
  }
  const std::string updates = UpdateRuleOf(configuration.training, BaseName(strategy));
  const auto rule = absl::c_find_if(probe.updates, [&](const auto& one) { return one.strategy == updates; });
  if (rule != probe.updates.end()) configuration.update = *rule;
  ResetOtherStrategiesFlags(configuration);
  if (configuration.strategy.uses_servers && configuration.training.server_placement.empty()) {
    configuration.training.server_placement = probe.placement;
  }
  // Simulated workers and replayed computing need no core.
  configuration.oversubscribed = training.clock != "virtual" && training.workload.empty() &&
                                 configuration.workers * training.threads > cores;
  return configuration;
}

absl::StatusOr<Plan> MakePlan(const CompareOptions& options, const Probe& probe, int cores) {
  PSRING_CHECK(probe.step_s > 0 && probe.samples > 0);
  Plan plan;
  TrainingOptions cost_training = options.training;
  cost_training.samples = 0;
  cost_training.epochs = 0;
  cost_training.evaluate = false;
  cost_training.eval_every = 0;
  const bool has_tables = HasTables(options.training);
  if (!options.layouts.empty()) {
    PSRING_ASSIGN_OR_RETURN(plan.cost, LayoutConfigurations(options, cost_training, probe, cores));
    plan.notes = LayoutNotes(options, probe);
  } else {
    PSRING_ASSIGN_OR_RETURN(plan.cost, Configurations(CostStrategies(options, has_tables, plan.notes),
                                                      options.workers, options, cost_training, probe, cores));
  }
  for (Configuration& configuration : plan.cost) configuration.target_accuracy = options.target_accuracy;
  PlanCost(options, probe, cores, plan);
  plan.expected_s = plan.rounds * plan.round_s;
  if (options.training.evaluate) {
    // With an explicit budget or tuned rates, every worker count is trained.
    const bool budget_given =
        !options.strategies.empty() && (options.training.samples > 0 || options.training.epochs > 0);
    const std::vector<int> workers = budget_given || !options.lr_factors.empty()
                                         ? options.workers
                                         : std::vector<int>{AccuracyWorkers(options.workers, cores)};
    PSRING_ASSIGN_OR_RETURN(plan.accuracy,
                            options.layouts.empty()
                                ? Configurations(AccuracyStrategies(options, has_tables), workers, options,
                                                 options.training, probe, cores)
                                : LayoutConfigurations(options, options.training, probe, cores));
    std::erase_if(plan.accuracy, [](const Configuration& one) { return one.strategy.name == "none"; });
    for (Configuration& configuration : plan.accuracy) {
      configuration.target_accuracy = options.target_accuracy;
    }
    PlanAccuracy(options, probe, cores, plan);
    plan.expected_s += plan.accuracy_s;
  }
  AddWarnings(cores, plan);
  AddLastNotes(options,
               TrNoop("this takes longer than --time_budget (2m by default), because the given settings are "
                      "kept and at least three rounds are run"),
               plan);
  return plan;
}

bool ShortenAccuracy(double left_s, double slowness, Plan& plan) {
  const double needed_s = plan.accuracy_s * std::max(1.0, slowness);
  if (!plan.accuracy_fitted || plan.accuracy.empty() || needed_s <= left_s) return false;
  const int64_t global_batch = LargestGlobalBatch(plan.accuracy);
  const int64_t planned = plan.accuracy.front().training.samples;
  const double share = std::clamp(left_s / needed_s, 0.0, 1.0);
  const int64_t batches = std::max<int64_t>(
      kFewestBatches, static_cast<int64_t>(share * static_cast<double>(planned)) / global_batch);
  const int64_t samples = batches * global_batch;
  if (samples >= planned) return false;
  for (Configuration& configuration : plan.accuracy) {
    configuration.training.samples = samples;
    configuration.training.eval_every = configuration.training.eval_every * samples / planned;
  }
  return true;
}

std::vector<int> RoundOrder(int count, uint64_t seed, int round) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(round));
  for (int i = count - 1; i > 0; --i) std::swap(order[i], order[random() % static_cast<uint64_t>(i + 1)]);
  return order;
}

}  // namespace psring
