// psring compare, train and replay.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "experiments/design/plan.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/nodes.h"
#include "experiments/launch/progress.h"
#include "experiments/virtual_cluster/link.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace psring {

// Settled by `train` for several replicas of --pp, --tp or --preset.
inline constexpr char kSettledRing[] = "--strategy=ring";

struct ExperimentFlags {
  CompareOptions options;
  std::string out;
  std::string resume;  // compare: the folder of the run to continue; empty: a new run
  bool dry_run = false;
  bool verbose = false;  // print all columns and the findings
  bool predict = false;  // compare the rows with the simulator
  LinkOptions link;
  NodesOptions nodes;
  bool link_is_default = false;      // not given; psring omits it if a configuration does not support it
  bool transport_given = false;      // --transport
  bool tensorboard = false;          // each launch's scalars, as event files
  std::string plan_of;               // a run whose rounds, steps and samples are used; empty: they are fitted
  std::vector<std::string> settled;  // by psring, for flags that are not given: "--model=cnn"
  std::vector<std::string> command_line;
};

// Returns the run's folder, or "" with --dry_run. Prints to `display` (stdout). `nodes`: node 0 of the
// machines to run on; null: this machine.
absl::StatusOr<std::string> Compare(const ExperimentFlags& flags, const Interrupt& interrupt,
                                    Display& display, Nodes* nodes = nullptr);

// The verbs return the exit code: 0, 2 for bad input (nothing is written then), 1 for a failure. Errors go to
// stderr.

int RunCompare(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display);

// `flags.options` has one strategy and one number of workers. --repeats trains again with the next seed.
int RunTrain(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display);

// Repeats every live asynchronous launch in `run`, a run folder or one of its record folders, from its
// recorded order of arrivals. 1: some weights differ; 2: there is nothing to replay.
int RunReplay(const std::string& run, const Interrupt& interrupt, Display& display);

// On several machines node 0 runs the experiment, and the others follow its orders.

// InvalidArgument: a configuration that cannot run on these nodes; the message says what to change.
absl::Status CheckOnNodes(const std::vector<Configuration>& configurations, const ExperimentFlags& flags);

// Numbers of workers for a comparison without --workers: doubled up to all processes of the nodes.
std::vector<int> WorkersOnNodes(const NodeLayout& layout, int ranks_per_process);

// Sets the flags that follow from --nnodes and those that it replaces (the virtual cluster). InvalidArgument:
// they contradict each other, or no machine would be left to train.
absl::Status UnderstandNodes(const absl::StatusOr<NodeLauncher>& launcher, ExperimentFlags& flags);

// Runs `lead`: with several machines, unless it only plans, as LeadOrFollow, else on this one, with null.
absl::Status RunOnNodes(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display,
                        const std::function<absl::Status(Nodes* nodes)>& lead);

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
