// A run as its manifest tells it, and the command line that makes it again. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/runs/provenance.h"

namespace psring {

struct RecordedRun {
  std::string verb;
  std::vector<std::string> command_line;  // as it was typed, the program's name first
  Provenance provenance;
  std::string json = {};  // all of the manifest
};
// From the text of a manifest.json. InvalidArgument in one line: it is none, of another layout, of a verb
// that leaves nothing to do again, of several machines, or of a psring that did not keep what is needed.
absl::StatusOr<RecordedRun> RecordedRunFromJson(const std::string& text);

struct Rerun {
  std::vector<std::string> arguments;  // the verb, then flags
  std::vector<std::string> left_out;   // flags that name places that the first run wrote to
};
// The recorded flags, with what was settled in the place of what was left open; files are named from
// anywhere. `run`: its folder, from which --plan_of takes rounds, steps and samples; empty: they are chosen
// anew. `out`: where the new run goes; empty: to a folder of its own under runs/.
Rerun MakeRerun(const RecordedRun& recorded, const std::string& run, const std::string& out);

// The text of a config.toml with the flags of MakeRerun: `psring VERB --config FILE` repeats the run.
std::string ConfigOf(const RecordedRun& recorded, const std::string& run);

// What is not as it was, a line each: "machine: cores 2 then, 4 now". Of `now`, a manifest made here,
// machine, versions and binaries count.
std::vector<std::string> Differences(const RecordedRun& recorded, const std::string& now);

// For a shell: quoted where it must be.
std::string ShellText(const std::vector<std::string>& words);

}  // namespace psring
