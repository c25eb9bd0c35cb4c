// Reads step times of an earlier run for a virtual clock.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/measure/step_times.h"
#include "experiments/analysis/summarise.h"
#include "experiments/design/launches.h"

namespace psring {

// Times of a launch's measured steps. *Derived*: an exchange begins when its waiting ends (waiting.h). The
// computing time of a delayed worker follows from its delay; that of others is their forward and backward
// pass, during which pushes begin. Pure. DataLoss: a worker has no measured step.
absl::StatusOr<StepTimes> TimesOf(const StrategyRow& strategy, const LaunchNote& note,
                                  const RunRecords& records);

class MeasuredRun {
 public:
  // NotFound: there are no launches. InvalidArgument: a launch.json is invalid, or every launch is simulated.
  static absl::StatusOr<MeasuredRun> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // The times of all launches of the configuration nearest to `configuration`, one launch after another.
  // Order of preference: same strategy, worker and server count; same strategy and worker count; same kind
  // (all-reduce or server) and worker count; same kind; with `any_kind`, any launch, for callers that use
  // only computing times. Sets `which` to a description of the one used. NotFound lists the run's launches.
  absl::StatusOr<StepTimes> TimesFor(const Configuration& configuration, bool any_kind,
                                     std::string& which) const;

 private:
  struct Launch {
    LaunchNote note;
    StrategyRow strategy;
  };
  std::string path_;
  std::vector<Launch> launches_;
};

}  // namespace psring
