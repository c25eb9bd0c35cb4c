// bench on several machines: node 0 measures, the others start their ranks and servers by its orders.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/plan.h"
#include "experiments/bench/runner.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/nodes.h"
#include "experiments/processes/progress.h"

namespace psring {

// Waits for all nodes. On node 0, runs `lead` and tells the others how it ended; on the others, starts this
// node's part of each launch. All nodes have the same plan, so an order is the index of a launch. Returns the
// error of `lead` or of this node.
absl::Status RunBenchOnNodes(const BenchFlags& flags, const BenchPlan& plan, const BenchBinaries& binaries,
                             const Interrupt& interrupt, Display& display,
                             const std::function<absl::Status(Nodes& nodes)>& lead);

// This node's part of the launch that the order names. InvalidArgument: the plan has no such launch.
absl::StatusOr<NodeTask> BenchTaskOf(const NodeOrder& order, const BenchRequest& request,
                                     const BenchPlan& plan, const BenchBinaries& binaries, BenchHost host);

}  // namespace psring
