// Reads a run from its manifest and derives the command line that repeats it; marks what a run depends on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct FileMark {
  std::string path;
  std::string hash;  // HashBytes
};
// NotFound, Unavailable: the file cannot be read.
absl::StatusOr<FileMark> MarkFile(const std::string& path);

// What is needed to repeat a run.
struct Provenance {
  std::string working_directory;
  std::vector<FileMark> binaries;  // psring and the programs it starts; `path` is the file name
  std::vector<FileMark> inputs;    // files that flags name, with absolute paths
  // The training data: flags for `trainer --check_only`, and the hash that it reports. Empty: none.
  std::vector<std::string> data_flags;
  std::string data_hash;
  // Flags for the values that psring chose ("--link=1e+09bit").
  std::vector<std::string> settled;
};

// Describes this process, `binaries` and `inputs`. Inputs that are not files (built-in names) are omitted; a
// folder is represented by a run's manifest.json or a checkpoint's training.json.
absl::StatusOr<Provenance> DescribeProvenance(const std::vector<std::string>& binaries,
                                              const std::vector<std::string>& inputs);

struct RecordedRun {
  std::string verb;
  std::vector<std::string> command_line;  // as typed, the program's name first
  Provenance provenance;
  std::string started_utc = {};
  std::string shaping = {};  // of its links
  double wall_s = 0;
  bool finished = false, tells_how_it_ended = false;  // earlier psrings did not tell
  std::string json = {};                              // all of the manifest
};
// Parses the text of a manifest.json. DataLoss: it is no JSON object. InvalidArgument: it has an unsupported
// schema version, or is from another verb, or from a psring that did not record its inputs, or a field is
// invalid.
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
