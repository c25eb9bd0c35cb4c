// Starts the processes of a benchmark's launch and collects their measurements.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/engine/launch.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/nodes.h"
#include "experiments/launch/progress.h"
#include "experiments/verbs/bench/plan.h"
#include "experiments/verbs/bench/result.h"

namespace psring {

// The flags of all launches that decide what is measured, each once; the same on all machines.
std::vector<std::string> SharedBenchFlags(const BenchRequest& request, const BenchPlan& plan);

// The machine that starts processes of a launch, and the launch's store.
struct BenchHost {
  int node = 0;
  JobHost host;  // its programs, and where its processes listen
  StorePlace store;
};

// The machine's part of a launch. Servers come last.
absl::StatusOr<std::vector<ChildSpec>> BenchChildren(const BenchRequest& request, const BenchPlan& plan,
                                                     const BenchLaunch& launch, const BenchHost& host);
// The same for a node other than node 0. All nodes have the same plan, so an order is the index of a launch;
// it also names the store's port. InvalidArgument: the plan has no such launch.
absl::StatusOr<NodeTask> BenchTaskOf(const NodeOrder& order, const BenchRequest& request,
                                     const BenchPlan& plan, BenchHost host);

// What the launches of a run have in common.
struct BenchSite {
  const BenchRequest& request;
  const BenchPlan& plan;
  const Binaries& binaries;
  Site site;
  double expected_s = 0;  // of the entire run
};

// Runs the launch with this index in the plan and adds its measurements to `result`. Logs go to `folder`.
// Error messages have one line and name the rank, and the combination if known. The deadline is more than 10
// times the expected time.
absl::Status LaunchBench(const BenchSite& bench, size_t index, const std::string& folder,
                         const Interrupt& interrupt, const std::string& label, Display& display,
                         BenchResult& result);

// The line that states the cause in a launcher's report about a failed child. Pure.
std::string OneLineOf(const std::string& report);

}  // namespace psring
