// From flags to what will be run: configurations, rounds, steps, and how long that should take. Pure.
//
// An experiment has two parts. The *cost* part is several short rounds; every round launches every
// configuration once, in a new order, so that a slow minute of the machine meets all of them. It says what a
// step costs. The *accuracy* part trains a few configurations once, on the same number of samples, and says
// what that buys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "experiments/texts/phrase.h"
#include "experiments/theory/catalog.h"
#include "experiments/theory/cost_model.h"

namespace psring {

inline constexpr int kMostWorkers = 64;
inline constexpr int kMostLogicalWorkers = 256;  // --clock virtual
inline constexpr int kFewestRounds = 3;

// What `psring compare` was asked for.
struct CompareOptions {
  std::vector<std::string> strategies;  // empty: the default comparison
  std::vector<int> workers = {1, 2, 4};
  std::vector<int> servers = {0};          // of each server strategy; 0: as --server_placement has it
  TrainingOptions training;                // its strategy is not used
  double target_accuracy = 0;              // 0: none
  std::vector<double> lrs;                 // more than one: the best of them is picked for each strategy
  int repeats = 0;                         // rounds, and trainings of the accuracy part; 0: fitted, and 1
  double time_budget_s = 180;              // what is left open is fitted into it
  Language language = Language::kEnglish;  // of what is said to people
};

// How a strategy updates the weights, flags and defaults resolved: the trainer's own words.
struct UpdateRule {
  std::string strategy, optimizer;
  double lr = 0, momentum = 0;
  std::vector<std::string> warnings;  // legal, and will probably hurt
  std::string refused;                // why its collectives are not to be had; empty: they are
};

struct Configuration {
  StrategyInfo strategy;
  ModelInfo model;
  int workers = 1;
  TrainingOptions training;
  UpdateRule update;
  bool oversubscribed = false;
  double target_accuracy = 0;  // 0: none

  // Its times are those of a virtual clock.
  bool simulated() const { return training.clock == "virtual"; }
  // Whose collectives: --backend, where it concerns the strategy.
  std::string backend() const { return training.backend.empty() ? strategy.backend : training.backend; }
  // That train.
  int ranks() const { return strategy.single_process ? 1 : workers; }
  // That carry them, each as many.
  int processes() const { return ranks() / training.ranks_per_process; }
  int servers() const {
    return strategy.needs == StrategyNeeds::kParameterServer ? ServersOf(training, workers) : 0;
  }
  std::string name() const;    // "ring x 4", "ps-sync x 4 on 2 servers"
  std::string folder() const;  // "ring-4", "ps-sync-4-on-2"
};

// What was learnt before the plan is made: of the data and model, and of one process that trains for a
// moment.
struct Probe {
  int64_t samples = 0;       // in the training data
  int64_t test_samples = 0;  // in the test data
  int64_t parameters = 0;    // of the model
  std::string data_hash;     // of what is trained on and tested with
  std::vector<UpdateRule> updates;
  double step_s = 0;          // one step of one process
  double launch_s = 0;        // one launch, besides its steps
  std::optional<Wires> link;  // what is asked for of a virtual cluster's links
};

struct Plan {
  bool simulated = false;  // `cost` are trainings on a virtual clock, and there are no others
  std::vector<Configuration> cost;
  int rounds = 0;
  int warmup_steps = 0, steps = 0;  // of a launch in the cost part
  std::vector<Configuration> accuracy;
  int accuracy_repeats = 0;
  bool rounds_fitted = false, accuracy_fitted = false;
  double round_s = 0, accuracy_s = 0, expected_s = 0;
  std::vector<std::string> notes;  // for people: what was added, what will not be said, what is unwise
};

// Bad input, in one line, from what needs no data and no processes: unknown or unfitting names, worker
// counts, micro-batches. The checks of single flags are ValidateTrainingOptions'.
absl::Status CheckCompareOptions(const CompareOptions& options, const Catalog& catalog);

// Numbers of workers that are compared where nobody says: 1, 2 and 4; with several GPUs to themselves, powers
// of two up to all of them, and all of them.
std::vector<int> DefaultWorkers(const TrainingOptions& training, int gpus);

// One device for all that is compared, whatever their number: "auto" is the CPU where `gpus` are too few for
// `workers` and may not be shared, since times on different devices say nothing about strategies.
std::string DeviceForAll(const TrainingOptions& training, const std::vector<int>& workers, int gpus);

// Whether the comparison has more workers than this machine's one GPU, and the user asked neither to share
// that GPU nor for another device: then it is measured with one worker and predicted for more.
bool GoesBeyondOneGpu(const CompareOptions& options, int gpus);

// `options` must have passed both checks.
absl::StatusOr<Plan> MakePlan(const CompareOptions& options, const Catalog& catalog, const Probe& probe,
                              int cores);

// Lets every training of the accuracy part take fewer samples, all the same number, where they would not be
// done in `left_s` when everything takes `slowness` times as long as planned. False: nothing was changed,
// because it fits or because the user chose the number. Never below ten global batches.
bool ShortenAccuracy(double left_s, double slowness, Plan& plan);

// One configuration of `strategy`.
absl::StatusOr<Configuration> MakeConfiguration(const std::string& strategy, int workers,
                                                const TrainingOptions& training, const Catalog& catalog,
                                                const Probe& probe, int cores);
// Where a parameter server clips: what that costs.
void AddClippingNote(Language language, Plan& plan);
// Where processes carry several ranks.
void AddLayoutNote(Language language, Plan& plan);
// What is compared where no strategies are named.
std::vector<std::string> DefaultStrategies();

// "worker 1 computes 3 times as long": what --straggler and --jitter_ms do to the workers; empty: nothing.
std::string DescribeDisturbances(const TrainingOptions& training, Language language = Language::kEnglish);

// Where --eval_every is not given: a curve of some points; of more where a target is looked for on it.
// `samples`: of the training, over all workers.
void PlanCurve(double samples, const Probe& probe, Configuration& configuration);

// InvalidArgument: an all-reduce whose time a virtual clock does not know.
absl::Status CheckVirtualStrategy(const StrategyInfo& strategy, const TrainingOptions& training);

// InvalidArgument where for some strategy and worker count no whole global batch fits into the data.
absl::Status CheckBatches(const CompareOptions& options, const Catalog& catalog, int64_t samples);

// The order of `count` configurations in a round: shuffled by seed and round.
std::vector<int> RoundOrder(int count, uint64_t seed, int round);

}  // namespace psring
