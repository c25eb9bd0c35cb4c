// What a run was made of, so that it can be made again: where psring stood, which programs and files it used,
// and what it settled by itself where flags left something open.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct FileMark {
  std::string path;
  std::string hash;  // HashBytes of all of it
};
// NotFound, Unavailable: it cannot be read.
absl::StatusOr<FileMark> MarkFile(const std::string& path);

struct Provenance {
  std::string working_directory;
  std::vector<FileMark> binaries;  // psring's own, and those it starts; `path`: the name alone
  std::vector<FileMark> inputs;    // files that flags name, absolute
  // The training data: what to ask `trainer --check_only`, and the hash that it answered. Empty: there is
  // none.
  std::vector<std::string> data_flags;
  std::string data_hash;
  // Flags that put what psring chose in the place of what was left open ("--link=1e+09bit").
  std::vector<std::string> settled;
};

// This process's folder and program, `binaries` and `inputs`; of `inputs` what is no file is left out (names
// of what is built in), and of a folder the file that stands for it is marked: a run's manifest.json, a
// checkpoint's training.json.
absl::StatusOr<Provenance> DescribeProvenance(const std::vector<std::string>& binaries,
                                              const std::vector<std::string>& inputs);

}  // namespace psring
