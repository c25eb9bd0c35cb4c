#include "experiments/run_folder/run_claim.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/text/translate.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// Another run that fails early may remove a folder between our calls.
constexpr int kAttempts = 100;

absl::Status CannotWrite(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(Tr("cannot write to $0: $1", path, Translation(why)));
}

absl::Status Taken(const std::string& path) {
  return absl::AlreadyExistsError(
      Tr("cannot write to $0: it is not empty, another run may use it or have written its results there; "
         "choose another folder",
         path));
}

// Creates `path` and missing parents and appends them to `made`, outermost first. 0, or errno.
int MakeFolders(const fs::path& path, std::vector<std::string>& made) {
  if (mkdir(path.c_str(), 0777) != 0) {
    if (errno != ENOENT) return errno;
    const fs::path parent = path.parent_path();
    if (parent.empty() || parent == path) return ENOENT;
    if (const int error = MakeFolders(parent, made); error != 0 && error != EEXIST) return error;
    if (mkdir(path.c_str(), 0777) != 0) return errno;
  }
  made.push_back(path.string());
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunClaim>> RunClaim::Make(const std::string& out, const std::string& verb,
                                                         absl::Time now) {
  if (!out.empty()) {
    std::string path = out;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    std::unique_ptr<RunClaim> claim(new RunClaim(path, /*named_here=*/false));
    const absl::Status taken = claim->Take();
    if (absl::IsAlreadyExists(taken)) return absl::FailedPreconditionError(taken.message());
    PSRING_RETURN_IF_ERROR(taken);
    return claim;
  }
  const std::string name =
      absl::StrCat("runs/", absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()), "-", verb);
  for (int count = 1;; ++count) {
    std::unique_ptr<RunClaim> claim(
        new RunClaim(count == 1 ? name : absl::StrCat(name, "-", count), /*named_here=*/true));
    const absl::Status taken = claim->Take();
    if (absl::IsAlreadyExists(taken)) continue;
    PSRING_RETURN_IF_ERROR(taken);
    return claim;
  }
}

absl::StatusOr<std::unique_ptr<RunClaim>> RunClaim::Reopen(const std::string& run) {
  std::unique_ptr<RunClaim> claim(new RunClaim(run, /*named_here=*/false));
  claim->kept_ = true;
  if (claim->Lock()) return claim;
  return absl::FailedPreconditionError(Tr("$0 is in use: another psring still runs there", run));
}

bool RunClaim::Lock() {
  lock_ = FileDescriptor(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems have no locks.
  return !lock_.valid() || flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

absl::Status RunClaim::Take() {
  int error = ENOENT;
  for (int attempt = 0; attempt < kAttempts && error == ENOENT; ++attempt) {
    error = MakeFolders(path_, made_);
    if (error == EEXIST) {
      struct stat info;
      if (stat(path_.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
        return CannotWrite(path_, "it is a file");
      std::error_code why;
      const bool empty = fs::is_empty(path_, why);
      if (!why && !empty) return Taken(path_);
      error = why.value();
    }
    if (error == 0) error = CreateManifest();
    if (error == EEXIST) return Taken(path_);
  }
  if (error != 0) return CannotWrite(path_, strerror(error));
  return Lock() ? absl::OkStatus() : Taken(path_);
}

int RunClaim::CreateManifest() {
  const FileDescriptor file(open(manifest().c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
  if (!file.valid()) return errno;
  claimed_ = true;
  return 0;
}

absl::Status RunClaim::Keep() {
  if (named_here_) PSRING_RETURN_IF_ERROR(LinkLatest());
  kept_ = true;
  return absl::OkStatus();
}

absl::Status RunClaim::LinkLatest() const {
  // The link is relative, so that the folder can be moved, and replaced by an atomic rename.
  const fs::path run(path_);
  const fs::path link = run.parent_path() / "latest";
  const fs::path fresh = run.parent_path() / absl::StrCat(".latest-", run.filename().string());
  std::error_code error;
  fs::create_directory_symlink(run.filename(), fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (!error) return absl::OkStatus();
  unlink(fresh.c_str());
  return CannotWrite(link.string(), error.message());
}

RunClaim::~RunClaim() {
  if (kept_) return;
  if (claimed_) unlink(manifest().c_str());
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) rmdir(folder->c_str());
}

}  // namespace psring
