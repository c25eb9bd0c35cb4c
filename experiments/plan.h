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
#include "common/training_options.h"
#include "experiments/catalog.h"
#include "experiments/cost_model.h"

namespace psring {

inline constexpr int kMostWorkers = 64;
inline constexpr int kFewestRounds = 3;

// What `psring compare` was asked for.
struct CompareOptions {
  std::vector<std::string> strategies;  // empty: the default comparison
  std::vector<int> workers = {1, 2, 4};
  TrainingOptions training;    // its strategy is not used
  int repeats = 0;             // rounds, and trainings of the accuracy part; 0: fitted, and 1
  double time_budget_s = 180;  // what is left open is fitted into it
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

  // Whose collectives: --backend, where it concerns the strategy.
  std::string backend() const { return training.backend.empty() ? strategy.backend : training.backend; }
  int servers() const { return strategy.needs == StrategyNeeds::kParameterServer ? 1 : 0; }
  std::string name() const;    // "ring x 4"
  std::string folder() const;  // "ring-4"
};

// What was learnt before the plan is made: of the data and model, and of one process that trains for a
// moment.
struct Probe {
  int64_t samples = 0;       // in the training data
  int64_t test_samples = 0;  // in the test data
  int64_t parameters = 0;    // of the model
  std::vector<UpdateRule> updates;
  double step_s = 0;          // one step of one process
  double launch_s = 0;        // one launch, besides its steps
  std::optional<Wires> link;  // what is asked for of a virtual cluster's links
};

struct Plan {
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
// What is compared where no strategies are named.
std::vector<std::string> DefaultStrategies();

// InvalidArgument where for some strategy and worker count no whole global batch fits into the data.
absl::Status CheckBatches(const CompareOptions& options, const Catalog& catalog, int64_t samples);

// The order of `count` configurations in a round: shuffled by seed and round.
std::vector<int> RoundOrder(int count, uint64_t seed, int round);

}  // namespace psring
