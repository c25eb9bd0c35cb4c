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

// Paths of the programs in this program's folder.
struct BenchBinaries {
  std::string ring_worker, ps_worker, ps_server;
  std::vector<std::string> all() const { return {ring_worker, ps_worker, ps_server}; }
};
absl::StatusOr<BenchBinaries> FindBenchBinaries();

absl::StatusOr<BenchCatalog> AskRingWorker(const BenchBinaries& binaries, const Interrupt& interrupt);

// Runs one launch and adds its measurements to `result`. Logs go to `folder`. Error messages have one line
// and name the rank, and the combination if known. The deadline is more than 10 times `expected_s` (seconds).
absl::Status LaunchBench(const BenchRequest& request, const BenchPlan& plan, const BenchLaunch& launch,
                         const BenchBinaries& binaries, const std::string& folder, double expected_s,
                         const Interrupt& interrupt, const std::string& label, Display& display,
                         BenchResult& result);

// The line that states the cause in a launcher's report about a failed child. Pure.
std::string OneLineOf(const std::string& report);

}  // namespace psring
