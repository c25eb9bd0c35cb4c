#include "experiments/runs/provenance.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/own_process.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/files.h"
#include "common/io/hash.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// The file that represents an input: itself, or the file that describes a folder; empty: none.
fs::path RepresentativeFile(const fs::path& input) {
  std::error_code error;
  if (!fs::is_directory(input, error)) return fs::is_regular_file(input, error) ? input : "";
  for (const char* name : {"manifest.json", kPositionFile}) {
    if (fs::exists(input / name, error)) return input / name;
  }
  return "";
}

}  // namespace

absl::StatusOr<FileMark> MarkFile(const std::string& path) {
  PSRING_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxRecordBytes));
  return FileMark{path, HashBytes(bytes.data(), bytes.size())};
}

absl::StatusOr<Provenance> DescribeProvenance(const std::vector<std::string>& binaries,
                                              const std::vector<std::string>& inputs) {
  Provenance provenance;
  std::error_code error;
  provenance.working_directory = fs::current_path(error).string();
  PSRING_ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  std::vector<std::string> programs = {self};
  programs.insert(programs.end(), binaries.begin(), binaries.end());
  for (const std::string& program : programs) {
    PSRING_ASSIGN_OR_RETURN(FileMark mark, MarkFile(program));
    mark.path = fs::path(program).filename().string();
    provenance.binaries.push_back(std::move(mark));
  }
  for (const std::string& input : inputs) {
    const fs::path file = RepresentativeFile(input);
    if (input.empty() || file.empty()) continue;
    PSRING_ASSIGN_OR_RETURN(provenance.inputs.emplace_back(), MarkFile(fs::absolute(file, error).string()));
  }
  return provenance;
}

}  // namespace psring
