// An earlier run, as the source of a virtual clock's times.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/measure/step_times.h"
#include "experiments/plan/launches.h"
#include "experiments/summary/summarise.h"

namespace psring {

// How long the steps of a launch took, from the records of its measured steps. *Derived*: an exchange's time
// begins when nobody is waited for any more (waiting.h); the computing of a worker that was slowed down is
// what its sleeps say, that of others all of their forward and backward pass, in which pushes begin. Pure.
// DataLoss where a worker has no measured step.
absl::StatusOr<StepTimes> TimesOf(const StrategyInfo& strategy, const LaunchNote& note,
                                  const RunRecords& records);

class MeasuredRun {
 public:
  // NotFound, InvalidArgument: it is no run, or a simulated one.
  static absl::StatusOr<MeasuredRun> Open(const std::string& path, const Catalog& catalog);

  const std::string& path() const { return path_; }
  // What its workers were disturbed with: --straggler and --jitter_ms of its first disturbed launch.
  std::string straggler() const;
  std::string jitter_ms() const;

  // All launches that were like `configuration`, one after the other: of its strategy and number of workers;
  // else of the same kind (all with a server, or all without) and number; else of the same kind; else, where
  // `any_kind` (of the times those of computing will do), of any. NotFound says what there is. `which`: the
  // launches that were taken, in words.
  absl::StatusOr<StepTimes> TimesFor(const Configuration& configuration, bool any_kind,
                                     std::string& which) const;

 private:
  struct Launch {
    LaunchNote note;
    StrategyInfo strategy;
  };
  std::string path_;
  std::vector<Launch> launches_;
};

}  // namespace psring
