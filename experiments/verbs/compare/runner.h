// Runs one configuration once: store, servers and trainers; then reads their records. Finds its checkpoints.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/options/training_options.h"
#include "experiments/analysis/summarise.h"
#include "experiments/design/plan.h"
#include "experiments/engine/launch.h"
#include "experiments/engine/programs.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/progress.h"
#include "experiments/launch/training_job.h"

namespace psring {

struct Launched {
  RunRecords records;
  double wall_s = 0;
};
// Reads what Launch left in `folder`. NotFound, DataLoss: the launch did not succeed.
absl::StatusOr<Launched> ReadLaunched(const Configuration& configuration, const std::string& folder);
// Writes outcome.json: what Launch measured in addition to the processes' records.
absl::Status WriteOutcome(const Launched& launched, const std::string& folder);

// Starts `configuration` with its processes' records in `folder` and waits for it. If a process dies, the job
// restarts from its last checkpoint, at most --max_restarts times. Checkpoints are kept in --checkpoint_dir,
// or with the records. `label` begins the progress line. The deadline is 10 times `expected_s` plus
// time-outs. DeadlineExceeded: it took too long, or ran until `site.until`. Other errors: see RunChildren.
absl::StatusOr<Launched> Launch(const Configuration& configuration, const std::string& folder,
                                const std::string& label, double expected_s, const Binaries& binaries,
                                const Site& site, const Interrupt& interrupt, Display& display);

// Trains for a moment with one process to measure its speed for `probe`. `briefly`: for seconds even if the
// model is slow, with a few samples of its batch.
absl::Status TimeTrainer(const Binaries& binaries, const TrainingOptions& training, bool briefly,
                         const Interrupt& interrupt, Display& display, Probe& probe);

// Replaces a run folder in --resume by the folder of its checkpoints, as the trainer expects. `latest`
// without --checkpoint_dir means runs/latest. NotFound: there are none; InvalidArgument: several trainings
// have some.
absl::Status ResolveResume(TrainingOptions& training);

// The training's newest checkpoint; empty if there is none.
std::string NewestCheckpoint(const TrainingOptions& training);

}  // namespace psring
