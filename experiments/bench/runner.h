// Starts the processes of a benchmark's launch and collects their measurements.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/bench/plan.h"
#include "experiments/bench/result.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/progress.h"

namespace psring {

// In the folder of this program.
struct BenchBinaries {
  std::string ring_worker, ps_worker, ps_server;
  std::vector<std::string> all() const { return {ring_worker, ps_worker, ps_server}; }
};
absl::StatusOr<BenchBinaries> FindBenchBinaries();

absl::StatusOr<BenchCatalog> AskRingWorker(const BenchBinaries& binaries, const Interrupt& interrupt);

// Logs go to `folder`. Errors are one line and name the rank, and the combination if known. `expected_s` sets
// the deadline, which is much later.
absl::Status LaunchBench(const BenchRequest& request, const BenchPlan& plan, const BenchLaunch& launch,
                         const BenchBinaries& binaries, const std::string& folder, double expected_s,
                         const Interrupt& interrupt, const std::string& label, Display& display,
                         BenchResult& result);

// The line of a launcher's report about a failed child that states the cause. Pure.
std::string OneLineOf(const std::string& report);

}  // namespace psring
