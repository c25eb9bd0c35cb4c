// The launches and the plan recorded in a run folder, so that both can be repeated.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/json_object.h"
#include "experiments/design/plan.h"

namespace psring {

// launch.json in a record folder.
struct LaunchNote {
  std::string strategy;
  int workers = 1;
  int servers = 0;
  std::vector<std::string> trainer_flags;
  double time_scale = 1;  // --scale; the records are not divided by it
  std::string folder;     // the record folder; not in the file
};

LaunchNote NoteOf(const Configuration& configuration);
std::string ToJson(const LaunchNote& note);
// `name` begins the errors.
absl::StatusOr<LaunchNote> LaunchNoteFromJson(const std::string& text, const std::string& name = "");
absl::StatusOr<LaunchNote> LaunchNoteFrom(const JsonObject& json);

// The value of a flag among `trainer_flags`, or `otherwise`.
std::string FlagOf(const LaunchNote& note, const std::string& flag, const std::string& otherwise);

// The launches of a run folder or of one record folder, ordered by path. NotFound: there are none.
absl::StatusOr<std::vector<LaunchNote>> ListLaunches(const std::string& run);

// The plan of an earlier run, and how much of it was done.
struct RecordedPlan {
  int rounds = 0;  // completed, or planned if none was
  int rounds_planned = 0, rounds_done = 0;
  int warmup_steps = 0, steps = 0;
  int trainings_each = 0;                   // of the accuracy part
  std::vector<std::string> trainings_done;  // by record folder
  std::vector<LaunchNote> cost, accuracy;

  bool all_done() const {
    return rounds_done >= rounds_planned &&
           trainings_done.size() >= accuracy.size() * static_cast<size_t>(trainings_each);
  }
};
// From the text of a manifest.json. InvalidArgument: it is not of compare or train, has no rounds, or a field
// is missing or invalid.
absl::StatusOr<RecordedPlan> RecordedPlanFromJson(const std::string& manifest);

// For --plan_of RUN: copies an earlier run's rounds, steps and samples into `plan` unless `asked` sets them.
// InvalidArgument names a configuration that the recorded run does not have.
absl::Status TakeRecordedPlan(const RecordedPlan& recorded, const CompareOptions& asked, Plan& plan);
// For --resume RUN: as TakeRecordedPlan with all planned rounds and trainings.
absl::Status ContinueRecordedPlan(const RecordedPlan& recorded, const CompareOptions& asked, Plan& plan);

}  // namespace psring
