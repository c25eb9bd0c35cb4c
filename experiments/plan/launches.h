// What a run folder says about its launches and its plan, so that both can be repeated.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/plan/plan.h"

namespace psring {

// launch.json in a record folder.
struct LaunchNote {
  std::string strategy;
  int workers = 1;
  int servers = 0;
  std::vector<std::string> trainer_flags;
  std::string folder;  // the record folder; not in the file
};

LaunchNote NoteOf(const Configuration& configuration);
std::string ToJson(const LaunchNote& note);
absl::StatusOr<LaunchNote> LaunchNoteFromJson(const std::string& text);

// The value of a flag among `trainer_flags`, or `otherwise`.
std::string FlagOf(const LaunchNote& note, const std::string& flag, const std::string& otherwise);

// The launches of a run folder or of one record folder, ordered by path. NotFound: there are none.
absl::StatusOr<std::vector<LaunchNote>> ListLaunches(const std::string& run);

// For --plan_of RUN, which uses an earlier run's rounds, steps and samples instead of fitting them.
struct RecordedPlan {
  int rounds = 0;  // completed
  int warmup_steps = 0, steps = 0;
  std::vector<LaunchNote> cost, accuracy;
};
// From the text of a manifest.json. InvalidArgument: it is not of compare or train, or has no rounds.
absl::StatusOr<RecordedPlan> RecordedPlanFromJson(const std::string& manifest);

// Copies recorded values into `plan` unless `asked` sets them. InvalidArgument names a configuration that the
// recorded run does not have.
absl::Status TakeRecordedPlan(const RecordedPlan& recorded, const CompareOptions& asked, Plan& plan);

}  // namespace psring
