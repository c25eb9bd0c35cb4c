// Starts the processes of a benchmark's launch and collects their measurements.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/bench/plan.h"
#include "experiments/bench/result.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/nodes.h"
#include "experiments/processes/progress.h"

namespace psring {

// Paths of the programs in this program's folder.
struct BenchBinaries {
  std::string ring_worker, ps_worker, ps_server;
  std::vector<std::string> all() const { return {ring_worker, ps_worker, ps_server}; }
};
absl::StatusOr<BenchBinaries> FindBenchBinaries();

absl::StatusOr<BenchCatalog> AskRingWorker(const BenchBinaries& binaries, const Interrupt& interrupt);

// The flags of all launches that decide what is measured, each once; the same on all machines.
std::vector<std::string> SharedBenchFlags(const BenchRequest& request, const BenchPlan& plan);

// The machine that starts processes of a launch, and the launch's store.
struct BenchHost {
  int node = 0;
  std::string address = "127.0.0.1";  // where its processes listen
  std::string store_host = "127.0.0.1";
  int store_port = 0;
  JobSecret secret;
};

// The machine's part of a launch. Servers come last. `folder` is for logs; empty: none.
absl::StatusOr<std::vector<ChildSpec>> BenchChildren(const BenchRequest& request, const BenchPlan& plan,
                                                     const BenchLaunch& launch, const BenchBinaries& binaries,
                                                     const BenchHost& host, const std::string& folder);

// What the launches of a run have in common.
struct BenchSite {
  const BenchRequest& request;
  const BenchPlan& plan;
  const BenchBinaries& binaries;
  Nodes* nodes = nullptr;  // null: one machine
  double expected_s = 0;   // of the entire run
};

// Runs the launch with this index in the plan and adds its measurements to `result`. Logs go to `folder`.
// Error messages have one line and name the rank, and the combination if known. The deadline is more than 10
// times the expected time.
absl::Status LaunchBench(const BenchSite& site, size_t index, const std::string& folder,
                         const Interrupt& interrupt, const std::string& label, Display& display,
                         BenchResult& result);

// The line that states the cause in a launcher's report about a failed child. Pure.
std::string OneLineOf(const std::string& report);

}  // namespace psring
