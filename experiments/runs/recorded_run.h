// Reads a run from its manifest and derives the command line that repeats it. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/runs/provenance.h"

namespace psring {

struct RecordedRun {
  std::string verb;
  std::vector<std::string> command_line;  // as typed, the program's name first
  Provenance provenance;
  std::string json = {};  // all of the manifest
};
// Parses the text of a manifest.json. InvalidArgument: it is malformed, has an unsupported schema version, or
// is from another verb, or from a psring that did not record its inputs.
absl::StatusOr<RecordedRun> RecordedRunFromJson(const std::string& text);
struct Again {
  std::vector<std::string> arguments;  // the verb, then flags
  std::vector<std::string> left_out;   // omitted flags: FlagReach::kOutside
};
// The recorded flags plus the settled ones, with absolute paths. `run`: the recorded run's folder, for
// --plan_of; empty: rounds and steps are planned again.
Again MakeAgain(const RecordedRun& recorded, const std::string& run);

// The text of a config.toml with the flags of MakeAgain: `psring VERB --config FILE` repeats the run.
std::string ConfigOf(const RecordedRun& recorded, const std::string& run);

// Differences in machine, versions and binaries from the manifest `now`, one line each:
// "machine: cores 2 then, 4 now".
std::vector<std::string> Differences(const RecordedRun& recorded, const std::string& now);

// Joins and quotes words for a shell.
std::string ShellText(const std::vector<std::string>& words);

// runs/latest, the last run here whose folder psring named. InvalidArgument: there is none; says how to name
// a run.
absl::StatusOr<std::string> LatestRun();

// What the user typed to start psring, for commands that psring suggests: "./run" or "psring".
std::string CommandName();

}  // namespace psring
