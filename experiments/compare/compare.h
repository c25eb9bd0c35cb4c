// psring compare: a sweep over strategies and worker counts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/plan/plan.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/nodes.h"
#include "experiments/processes/progress.h"
#include "experiments/virtual_cluster/link.h"

namespace psring {

struct ExperimentFlags {
  CompareOptions options;
  std::string out;
  bool dry_run = false;
  bool predict = false;  // compare the rows with the simulator
  bool time_budget_given = false;
  LinkOptions link;
  NodesOptions nodes;
  bool link_is_default = false;  // not given: dropped if something in the comparison does not support it
  int metrics_port = -1;         // below 0: none
  bool live = false;             // serve a page with progress on this machine
  int live_port = 0;             // 0: the system chooses
  bool tensorboard = false;      // each launch's scalars, as event files
  std::string plan_of;           // a run whose rounds, steps and samples are taken; empty: they are fitted
  std::vector<std::string> command_line;
};

// Returns the run's folder, or "" with --dry_run. Prints to `display` (stdout).
absl::StatusOr<std::string> Compare(const ExperimentFlags& flags, const Interrupt& interrupt,
                                    Display& display);

// Compare, with its error on stderr. Returns the exit code: 0, 2 for bad input (nothing has been written
// then), 1 for a failure.
int RunCompare(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
