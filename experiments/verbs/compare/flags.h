// The flags of `psring compare` and `psring train`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "experiments/launch/nodes.h"
#include "experiments/verbs/compare/compare.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace psring {

// The flags of a verb as parsed; `flags` holds those that need no further parsing.
struct RawExperimentFlags {
  ExperimentFlags flags;
  std::string strategies, workers, servers, server_wires, time_budget, lrs, tune, like, resume;
  std::string layouts, programs, micro_batches, copy_streams;  // compare
  std::string preset;                                          // train
  std::string link = "none", latency = "0";
  // Whether these were given; null: not parsed.
  const CLI::Option *transport = nullptr, *model = nullptr, *batch = nullptr;
  absl::StatusOr<NodeLauncher> launcher = NodeLauncher();  // of this process; used with --nnodes
};

RawExperimentFlags CompareDefaults();

// The verbs, with their flags' help and checks. `raw` must outlive the parsing.
CLI::App* AddCompare(CLI::App& app, RawExperimentFlags& raw);
CLI::App* AddTrain(CLI::App& app, RawExperimentFlags& raw);

// The parsed flags as the verb's options. InvalidArgument: one line about flags that contradict each other.
absl::StatusOr<ExperimentFlags> UnderstandCompare(const RawExperimentFlags& asked,
                                                  const std::vector<std::string>& command_line);
absl::StatusOr<ExperimentFlags> UnderstandTrain(const RawExperimentFlags& raw,
                                                const std::vector<std::string>& command_line);

}  // namespace psring
