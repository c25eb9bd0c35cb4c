// Checks the input of compare and train, measures what a plan needs, and asks before a comparison that takes
// long.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/options/training_options.h"
#include "experiments/analysis/summarise.h"
#include "experiments/design/launches.h"
#include "experiments/design/plan.h"
#include "experiments/engine/launch.h"
#include "experiments/engine/programs.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/progress.h"
#include "experiments/launch/training_job.h"
#include "experiments/machine/machine.h"
#include "experiments/run_folder/measured_run.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/run_folder/run_claim.h"
#include "experiments/verbs/compare/compare.h"
#include "experiments/virtual_cluster/virtual_cluster.h"

namespace psring {

// Everything that is known before the plan is made.
struct Prepared {
  int64_t begin_ns = 0;  // when preparation began
  Binaries binaries;
  Machine machine;
  int cores = 1;  // of all machines, assuming that they are equal
  Probe probe;
  LinkOptions link;  // of the virtual cluster; none if a default one is not possible
  Shaping shaping = Shaping::kNone;
  CarriedCluster virtual_cluster;                 // empty: none
  Site site;                                      // `cluster` is set by Experiment
  std::unique_ptr<RunClaim> claim;                // null: --dry_run
  std::unique_ptr<const MeasuringNow> measuring;  // null: nothing is measured
  std::vector<MeasuredRun> measured;              // those that --compute_ms and --network_ms name
};

// Replaces aliases of strategies in the flags by the strategies' names, which records and tables show. With
// --nnodes, also places the servers (PlaceServers), for which all nodes need the same flags.
absl::Status NameStrategies(ExperimentFlags& flags);

// Checks all input, builds and measures the virtual cluster, and measures the trainer's speed.
// InvalidArgument, NotFound, FailedPrecondition: the input is invalid; no files are left behind.
absl::StatusOr<Prepared> Prepare(const ExperimentFlags& flags, const std::string& verb,
                                 const Interrupt& interrupt, Display& display);

// ResourceExhausted or FailedPrecondition: a configuration does not fit into the memory of this host, with
// figures and layouts that do. With --layouts auto it is left out (Probe::too_large) unless it is the last
// one. Ranks on several machines check it themselves.
absl::Status CheckMemoryOf(const std::vector<Configuration>& configurations, const ExperimentFlags& flags,
                           const Binaries& binaries, const Interrupt& interrupt, Probe& probe);

// The run that `time` ("trace:RUN") names; null: it names none.
const MeasuredRun* MeasuredIn(const Prepared& prepared, const std::string& time);
// The times of the run that `time` names, of computing or of exchanges. CHECKs that it names one. Sets
// `which` to the configuration that they come from.
absl::StatusOr<StepTimes> MeasuredTimes(const Prepared& prepared, const std::string& time, bool computing,
                                        const Configuration& configuration, std::string& which);

// What the run depends on, and the flags that repeat what psring chose.
absl::StatusOr<Provenance> ProvenanceOf(const ExperimentFlags& flags, const Prepared& prepared,
                                        const Plan& plan);

// On several machines, adds a note that names them.
void AddMachinesNote(const Site& site, Plan& plan);

// With --plan_of, replaces the fitted values of `plan` by those of that run. Errors name the run.
absl::Status TakePlanOf(const ExperimentFlags& flags, Plan& plan);

// Checks that the runs named by --compute_ms and --network_ms have times for every configuration. Adds notes
// that say which configuration's times are used.
absl::Status CheckMeasured(const Prepared& prepared, Plan& plan);

// OK if the plan may start: it is short, --time_budget allows its duration, it repeats or resumes another
// run, or the user answers yes; with --dry_run always, after a note on a long plan. psring asks only in the
// foreground of a terminal, and waits at most two minutes. InvalidArgument: the plan is long, and psring did
// not ask; the message names the flags that help. Cancelled: the answer was no, or none. `spent_s`: already
// spent on preparation.
absl::Status ConfirmLongPlan(const ExperimentFlags& flags, const Prepared& prepared, double spent_s,
                             const Plan& plan, const Interrupt& interrupt, Display& display);

// compare --resume RUN: continues a comparison that ended before its plan did.
struct ResumedRun {
  RecordedRun recorded;
  RecordedPlan plan;
};
// NotFound, InvalidArgument: `folder` is not the run folder of a comparison, or the comparison is finished.
absl::StatusOr<ResumedRun> ReadResumedRun(const std::string& folder);

// The flags of the run `asked.resume`, with those of `asked` that may differ. InvalidArgument: another flag
// differs from the run's.
absl::StatusOr<ExperimentFlags> ResumedFlags(const RawExperimentFlags& asked,
                                             const std::vector<std::string>& command_line);

// Rounds may only be added by the same programs, with the same inputs, on the same machine.
// FailedPrecondition names the differences.
absl::Status CheckSameConditions(const ResumedRun& run, const ExperimentFlags& flags,
                                 const Prepared& prepared);

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
