// Describes each launch in a run folder, so that the same processes can be started again.
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

}  // namespace psring
