// The provenance of a run, so that it can be repeated: working directory, programs, input files, and the
// values that psring chose for flags that were not set.
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

}  // namespace psring
