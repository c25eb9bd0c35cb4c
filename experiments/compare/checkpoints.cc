#include "experiments/compare/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/checkpoint_folder.h"
#include "common/text/translate.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kLatestRun[] = "runs/latest";
constexpr int kDepth = 4;  // records/training-1/ring-2/checkpoints

std::vector<std::string> FoldersIn(const std::string& run) {
  std::vector<std::string> folders;
  std::error_code error;
  // With a trailing slash, because runs/latest is a link.
  for (fs::recursive_directory_iterator at(run + "/", error), end; !error && at != end; at.increment(error)) {
    if (at.depth() >= kDepth) at.disable_recursion_pending();
    std::error_code none;
    if (at->is_directory(none) && !ListCheckpoints(at->path().string()).empty()) {
      folders.push_back(at->path().lexically_normal().string());
    }
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

absl::Status ResolveResume(TrainingOptions& training) {
  std::string& resume = training.resume;
  if (resume.empty()) return absl::OkStatus();
  const bool latest = resume == "latest";
  if (latest && !training.checkpoint_dir.empty()) return absl::OkStatus();  // the trainer finds it
  const std::string run = latest ? kLatestRun : resume;
  std::error_code error;
  if (!latest && (!fs::is_directory(run, error) || fs::exists(fs::path(run) / kPositionFile, error) ||
                  !ListCheckpoints(run).empty())) {
    // A checkpoint, a folder of checkpoints, or an error that the trainer reports. The path is resolved
    // because this training changes runs/latest.
    if (const fs::path place = fs::canonical(resume, error); !error) resume = place.string();
    return absl::OkStatus();
  }
  const std::vector<std::string> folders = FoldersIn(run);
  if (folders.empty()) {
    return absl::NotFoundError(
        Tr("--resume $0: there is no checkpoint$1; train with --checkpoint_every or --checkpoint_dir to "
           "write some",
           resume, latest ? Tr(" in $0", kLatestRun) : ""));
  }
  if (folders.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("--resume ", resume,
                                                   ": several trainings have checkpoints there; name one of ",
                                                   absl::StrJoin(folders, ", ")));
  }
  resume = fs::canonical(folders.front(), error).string();
  return absl::OkStatus();
}

std::string NewestCheckpoint(const TrainingOptions& training) {
  if (training.checkpoint_dir.empty()) return "";
  for (const CheckpointPath& one : ListCheckpoints(training.checkpoint_dir)) {
    if (one.sequence >= 0) return one.path;
  }
  return "";
}

}  // namespace psring
