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
  bool predict = false;  // hold the rows against the simulator
  bool time_budget_given = false;
  LinkOptions link;
  NodesOptions nodes;
  bool link_is_default =
      false;                 // nobody asked for it: given up where something in the comparison cannot have it
  int metrics_port = -1;     // below 0: none
  bool live = false;         // a page on a port of this machine while it goes on
  int live_port = 0;         // 0: the system chooses
  bool tensorboard = false;  // each launch's scalars, as event files
  std::string plan_of;       // a run whose rounds, steps and samples are taken; empty: they are fitted
  std::vector<std::string> command_line;
};

// Returns the run's folder, or "" with --dry_run. Everything that people should read goes to `display`
// (stdout).
absl::StatusOr<std::string> Compare(const ExperimentFlags& flags, const Interrupt& interrupt,
                                    Display& display);

// Compare, with its error on stderr. Returns the exit code: 0, 2 for bad input (nothing has been written
// then), 1 for a failure.
int RunCompare(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
