#include "experiments/processes/temporary_folder.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// Whether the process that created the folder has ended. If its pid is in use again, the folder stays.
bool IsLeftOver(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  int pid = 0;
  if (parts.size() != 3 || parts[0] != "psring" || !absl::SimpleAtoi(parts[1], &pid) || pid <= 0)
    return false;
  return kill(pid, 0) != 0 && errno == ESRCH;
}

void RemoveLeftOvers(const fs::path& base) {
  std::error_code error;
  std::vector<fs::path> left_over;
  for (fs::directory_iterator entry(base, error), end; !error && entry != end; entry.increment(error)) {
    if (IsLeftOver(entry->path().filename().string())) left_over.push_back(entry->path());
  }
  for (const fs::path& path : left_over) fs::remove_all(path, error);
}

}  // namespace

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(const std::string& base) {
  std::error_code error;
  const fs::path parent = base.empty() ? fs::temp_directory_path(error) : fs::path(base);
  RemoveLeftOvers(parent);
  std::string name = (parent / absl::StrCat("psring-", getpid(), "-XXXXXX")).string();
  if (error || mkdtemp(name.data()) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot create a temporary folder: ", name));
  }
  return TemporaryFolder(name);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace psring
