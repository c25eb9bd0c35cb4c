// Turns flags into a plan: configurations, rounds, steps and the expected duration. Pure.
//
// An experiment has two parts. The *cost* part measures the time of a step in several short rounds; each
// round launches every configuration once, in a new order, so that a slow phase of the machine affects all of
// them. The *accuracy* part trains a few configurations on the same number of samples.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "experiments/design/layouts.h"
#include "trainer/models/table/model_table.h"
#include "trainer/programs/mesh.h"
#include "trainer/strategies/table/cost_model.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

inline constexpr int kMaxWorkers = 64;
inline constexpr int kMaxLogicalWorkers = 256;  // --clock virtual
inline constexpr int kFewestRounds = 3;
// Student's t factor of a 95% interval is 4.3 for three rounds and 2.8 for five.
inline constexpr int kRoundsForNarrowIntervals = 5;
inline constexpr int kFewestSteps = 6;     // measured steps of a cost launch, if fitted
inline constexpr int kFewestBatches = 10;  // global batches of an accuracy training, if fitted

// The flags of `psring compare`.
struct CompareOptions {
  std::vector<std::string> strategies;  // empty: the default comparison
  std::vector<int> workers = {2, 4};
  std::vector<int> servers = {0};  // of each server strategy; 0: as --server_placement implies
  std::vector<std::string> server_wires = {"grpc"};  // likewise
  // --layouts, or --pp with each number of `workers`, which are always theirs. Empty: all have whole models.
  // All have the same `training.global_batch`. Of several `strategies` and `programs`, those combinations are
  // left out that do not suit each other.
  std::vector<Layout> layouts;
  bool tries_layouts = false;  // --layouts auto: those that do not suit model, strategy or flags are left out
  std::vector<std::string> programs = {"1f1b"};  // of layouts with a pipeline
  std::vector<int> micro_batches;       // of a step, which the replicas share; at least one with `layouts`
  std::string rank_order, cuts;         // likewise, as in TrainingOptions; cuts "all": kAllCuts
  std::vector<int> copy_streams = {2};  // likewise
  TrainingOptions training;             // its `strategy`, `servers` and `server_wire` are not used
  double target_accuracy = 0;           // 0: none
  std::vector<double> lrs;              // more than one: the best one is picked for each strategy
  // --tune lr: times each strategy's rate; the best one is picked for each strategy and number of workers.
  std::vector<double> lr_factors;
  int repeats = 0;                 // rounds and accuracy trainings; 0: rounds are fitted, one training
  double time_budget_s = 120;      // rounds, steps and samples that are not set are fitted into it
  bool time_budget_given = false;  // then it is a limit for the whole run (FitIntoBudget)
};

// How a strategy updates the weights, as the trainer reports it.
struct StrategyUpdate {
  std::string strategy, optimizer;
  double lr = 0, momentum = 0;
  std::vector<std::string> warnings;  // settings that are valid but will probably hurt
  std::string refused;                // why its collectives are unavailable; empty: they are available
};

struct TrainedModel {
  std::string name;        // with the sizes that flags change
  int64_t parameters = 0;  // outside of tables
  bool has_tables = false;
};

struct Configuration {
  StrategyRow strategy;
  TrainedModel model;
  int workers = 1;
  TrainingOptions training;
  StrategyUpdate update;
  bool oversubscribed = false;
  int predictions = 1;               // of a sample, which budgets and speeds count: the tokens of a text
  int per_machine = 1;               // workers on a machine
  bool on_machines = false;          // real ones (--nnodes)
  double target_accuracy = 0;        // 0: none
  std::vector<double> tried_lrs;     // its own was picked from these (rates.h); empty: it was not picked
  bool names_micro_batches = false;  // pipelines with several numbers of them are compared
  bool names_cuts = false;           // pipelines that are cut in several places are compared

  bool simulated() const { return training.clock == "virtual"; }
  bool scaled() const { return training.time_scale > 1; }  // --scale: measured times are divided
  std::string backend() const { return training.backend.empty() ? strategy.backend : training.backend; }
  int ranks() const { return strategy.single_process ? ReplicaRanks(training) : workers; }
  // Replicas of the model; each takes its own samples.
  int replicas() const { return workers / ReplicaRanks(training); }
  std::string layout() const { return Layout{replicas(), training.pp, training.tp, training.cp}.name(); }
  // Workers that divide a replica's model or its sequences, without a pipeline's program.
  bool divides() const { return training.tp > 1 || training.cp > 1; }
  // That add up the gradient of the same part of the model: replicas, and with --cp those of their sequences.
  int gradient_ranks() const { return replicas() * training.cp; }
  // Of a replica's step, in predictions; without --reference_workers.
  int64_t step_samples() const { return WorkerBatch(training) * predictions; }
  int processes() const { return ranks() / training.ranks_per_process; }
  // Workers that add their gradients before one of them pushes: --local_aggregation.
  int workers_per_push() const { return training.local_aggregation ? per_machine : 1; }
  // In the job: with --pp of all stages.
  int servers() const { return strategy.uses_servers ? ServersOf(training, workers) : 0; }
  // Whether all servers are on the machine of rank 0, and other workers on other machines.
  bool has_worker_without_link() const {
    return servers() > 0 && training.server_placement == "rank0" && per_machine < ranks();
  }
  // "dp2xpp2 1f1b", "pp2 gpipe m8", "pp2 1f1b cut 3", "pp2 1f1b copy 1" (--copy_streams); empty: the model is
  // not cut
  std::string pipeline() const;
  // "ring x 4", "ps-sync x 4 on 2 servers", "ps-sync x 4 (stream)", "ring x 4 (dp2xpp2 1f1b)"
  std::string name() const;
  std::string folder() const;  // "ring-4", "ps-sync-4-on-2", "ps-sync-4-stream", "ring-4-pp2-1f1b-m8"
};

// Facts about the data, the model and one short training, known before planning.
struct Probe {
  int64_t samples = 0;                   // in the training data, in predictions
  int64_t test_samples = 0;              // in the test data, likewise
  int predictions = 1;                   // of a sample; more for texts, whose tokens are counted
  int64_t parameters = 0;                // of the model
  std::vector<int64_t> bucket_elements;  // of --bucket_mb; empty: not known
  std::vector<int64_t> cuts;             // the layers before which a model of two stages can be cut
  // The layers before which stages can begin; nothing: not known.
  std::optional<std::vector<size_t>> cut_points;
  // The numbers of ranks that can divide the model's matrices, 1 first; nothing: not known.
  std::optional<std::vector<int64_t>> tensor_ranks;
  int64_t memory_bytes = 0, free_bytes = 0;      // that one process needs, and its device has; 0: not known
  std::map<std::string, std::string> too_large;  // why configurations do not fit, by folder()
  std::string data_hash;                         // of training and test data
  std::vector<StrategyUpdate> updates;
  double step_s = 0;                // one step of one process
  int64_t step_samples = 0;         // of that step; 0: as many as in any step
  double launch_s = 0;              // one launch without its steps
  std::optional<Wires> link;        // the requested links of a virtual cluster
  int per_machine = 0;              // most workers on a machine; 0: all of them
  bool on_machines = false;         // the machines are real ones (--nnodes)
  int spread_over = 0;              // machines on which workers are spread equally; 0: each is filled in turn
  std::string transport;            // in place of --transport; empty: as given
  std::string placement = "rank0";  // of servers without --server_placement
};

struct Plan {
  bool simulated = false;  // `cost` holds trainings on a virtual clock; `accuracy` is empty
  std::vector<Configuration> cost;
  int rounds = 0;
  int warmup_steps = 0, steps = 0;  // of a launch in the cost part
  std::vector<Configuration> accuracy;
  int accuracy_repeats = 0;
  bool rounds_fitted = false, accuracy_fitted = false;
  double round_s = 0, accuracy_s = 0, expected_s = 0;
  std::vector<std::string> notes;  // for users: additions, limitations, warnings
};

// Checks combinations of flags, without data or processes: names, worker counts, micro-batches.
// ValidateTrainingOptions checks single flags.
absl::Status CheckCompareOptions(const CompareOptions& options);

// Worker counts without --workers: 1, 2 and 4; with several GPUs, powers of two up to all of them, and all.
std::vector<int> DefaultWorkers(const TrainingOptions& training, int gpus);

// The device of all configurations. "auto" is the CPU if `gpus` are too few for `workers` and may not be
// shared: times on different devices cannot be compared.
std::string DeviceForAll(const TrainingOptions& training, const std::vector<int>& workers, int gpus);

// Whether the comparison has several workers for this machine's only GPU, without a flag to share it or to
// use another device. It is then measured with one worker and predicted for more.
bool GoesBeyondOneGpu(const CompareOptions& options, int gpus);

// CompareOptions::cuts: a case for each layer before which two stages can be cut, but at most kMaxCuts.
inline constexpr char kAllCuts[] = "all";
inline constexpr size_t kMaxCuts = 12;

// The part of it about `layouts`: names the layout that has no equal micro-batches for its replicas, or the
// strategy or program that does not suit it.
absl::Status CheckLayouts(const CompareOptions& options);

// `single`, `none` for every layout of whole models, and every layout with every program, number of
// micro-batches and cut; without a pipeline with the first number. InvalidArgument: kAllCuts, and the model
// cannot be cut.
absl::StatusOr<std::vector<Configuration>> LayoutConfigurations(const CompareOptions& options,
                                                                const TrainingOptions& training,
                                                                const Probe& probe, int cores);
// What they have in common, and what is left out.
std::vector<std::string> LayoutNotes(const CompareOptions& options, const Probe& probe);

// `options` must have passed CheckCompareOptions and ValidateTrainingOptions.
absl::StatusOr<Plan> MakePlan(const CompareOptions& options, const Probe& probe, int cores);

// The plan for --clock virtual: `cost` holds trainings, one of each per round, because step times are given;
// `single` is added as the reference.
absl::StatusOr<Plan> MakeVirtualPlan(const CompareOptions& options, const Probe& probe, int cores);
// Checks what a virtual clock requires. `options` must have passed CheckCompareOptions.
absl::Status CheckVirtualOptions(const CompareOptions& options);

// Reduces the samples of all accuracy trainings equally, to at least kFewestBatches, if they would take
// more than `left_s` at `slowness` times the planned duration. False: nothing changed, because they fit or
// the user chose the number.
bool ShortenAccuracy(double left_s, double slowness, Plan& plan);

// With --global_batch, sets the share of one of `workers`. CheckBatches must have succeeded.
void SetBatch(int workers, TrainingOptions& training);

absl::StatusOr<Configuration> MakeConfiguration(const std::string& strategy, int workers,
                                                const TrainingOptions& training, const Probe& probe,
                                                int cores);
// Adds `configuration` unless `configurations` has it.
void AddIfNew(const Configuration& configuration, std::vector<Configuration>& configurations);
// Adds a note if a parameter server clips.
void AddClippingNote(Plan& plan);
// Adds notes if processes have several ranks, and if servers are beside one worker.
void AddLayoutNote(Plan& plan);
// Describes the pipelines in `plan.cost`.
void AddPipelineNotes(Plan& plan);
// Adds the trainer's warnings about the configurations in `plan.cost`.
void AddUpdateWarnings(Plan& plan);
// Adds notes on --straggler and --jitter_ms, and, `over_budget`, if the plan takes longer than the budget.
void AddLastNotes(const CompareOptions& options, const char* over_budget, Plan& plan);
// Those of --strategies, or the default ones. `has_tables`: the model has tables.
std::vector<std::string> ComparedStrategies(const CompareOptions& options, bool has_tables);

// Describes --straggler and --jitter_ms: "worker 1 computes 3 times as long"; empty: neither is set.
std::string DescribeDisturbances(const TrainingOptions& training);

// Without --eval_every, sets the evaluation interval for a curve of a few points, or more if there is a
// target accuracy. `samples`: of the training, over all workers.
void PlanCurve(double samples, const Probe& probe, Configuration& configuration);

// InvalidArgument: the virtual clock has no model of the strategy's all-reduce.
absl::Status CheckVirtualStrategy(const StrategyRow& strategy, const TrainingOptions& training);

// InvalidArgument: for some worker count, a global batch exceeds the data, or --global_batch does not divide.
absl::Status CheckBatches(const CompareOptions& options, int64_t samples);

// Sets the steps of all launches in the cost part, and the time of a round.
void SetSteps(int steps, const Probe& probe, int cores, Plan& plan);

// The number of trainings of each configuration of the accuracy part, including those that try rates.
double TrainingsOfEach(const CompareOptions& options, const Plan& plan);
// The duration of `trainings` of each configuration of the accuracy part, with `samples` each.
double AccuracySeconds(const Plan& plan, int64_t samples, double trainings, const Probe& probe, int cores);

// The order of `count` configurations in a round, shuffled by seed and round.
std::vector<int> RoundOrder(int count, uint64_t seed, int round);

std::string DescribePlan(const Plan& plan);

// "5 rounds".
std::string RoundsText(int rounds);

// What speeds and budgets count: "samples", or the "tokens" of texts.
std::string UnitOf(bool reads_text);

// "2m50s", "12s".
std::string HumanSeconds(double seconds);

// Seconds, of "180", "180s", "3m", "1h" or "1m30s".
absl::StatusOr<double> ParseSeconds(const std::string& text);

// Reserved in every time budget for writing the results, in s.
inline constexpr double kReportSeconds = 2;

// A comparison that takes longer does not start unless the user confirms it or gives --time_budget.
inline constexpr double kMaxUnaskedSeconds = 600;

// Says how long `plan` takes, and which flags start or shorten it: a --time_budget for all of it, one of
// kMaxUnaskedSeconds if that is enough for a shorter plan, and --workload if the model has recorded times.
std::string LongPlanAdvice(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           const Plan& plan);

// Shortens `plan` until it takes at most `asked.time_budget_s` less `spent_s` (of preparation) and
// kReportSeconds: first fewer steps, then fewer samples of the accuracy trainings, fewer rounds (at least
// kFewestRounds), no accuracy trainings, finally down to one round. Keeps what `asked` sets. Adds a note.
// InvalidArgument: no plan fits; the message names a sufficient time budget and flags that shorten the plan.
absl::Status FitIntoBudget(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           Plan& plan);

}  // namespace psring
