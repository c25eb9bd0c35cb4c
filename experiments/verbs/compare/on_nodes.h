// compare and train on several machines: node 0 runs the experiment, the others follow its orders.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "experiments/design/plan.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/nodes.h"
#include "experiments/launch/progress.h"
#include "experiments/verbs/compare/compare.h"

namespace psring {

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

}  // namespace psring
