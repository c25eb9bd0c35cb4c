#include "experiments/launch/temporary_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/errors.h"
#include "common/io/hash.h"
#include "common/net/host_identity.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kLockFile[] = ".psring-lock";

// Machines and containers that share a folder have different ones.
std::string Prefix() {
  const std::string id = absl::StrCat(HostName(), " ", BootId(), " ", NamespaceId("pid"));
  return absl::StrCat("psring-", HashBytes(id.data(), id.size()), "-");
}

// Without waiting. The lock belongs to the open file, so that two folders of one process are distinguished.
bool Lock(int fd) {
  flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// The file gets its name after it was locked. So other processes find it locked until its owner has ended.
FileDescriptor MakeLock(const fs::path& folder) {
  const fs::path made = folder / absl::StrCat(kLockFile, "-new");
  FileDescriptor fd(open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid() || !Lock(fd.get()) || rename(made.c_str(), (folder / kLockFile).c_str()) != 0) {
    (void)unlink(made.c_str());
    return {};
  }
  return fd;
}

// Whether the owner has ended, as far as the lock shows. Other users can create a folder with this name.
void RemoveIfLeftOver(const fs::path& folder) {
  struct stat status = {};
  if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) return;
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const FileDescriptor fd(open((folder / kLockFile).c_str(), flags));
  std::error_code ignored;
  if (fd.valid() && Lock(fd.get())) fs::remove_all(folder, ignored);
}

void RemoveLeftOvers(const fs::path& base, const std::string& prefix) {
  if (BootId().empty() || NamespaceId("pid").empty()) return;  // others may have the same prefix
  std::error_code error;
  std::vector<fs::path> candidates;
  for (fs::directory_iterator entry(base, error), end; !error && entry != end; entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), prefix)) candidates.push_back(entry->path());
  }
  for (const fs::path& path : candidates) RemoveIfLeftOver(path);
}

// The system's temporary folder, and the variable that names it.
std::pair<std::string, std::string> SystemsFolder() {
  for (const char* name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const char* value = getenv(name);
    if (value != nullptr && *value != '\0') return {value, name};
  }
  return {"/tmp", ""};
}

}  // namespace

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(const std::string& base, const std::string& remedy) {
  const auto [parent, variable] = base.empty() ? SystemsFolder() : std::pair(base, std::string());
  const std::string prefix = Prefix();
  RemoveLeftOvers(parent, prefix);
  std::string name = (fs::path(parent) / absl::StrCat(prefix, "XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr) {
    return FailedPrecondition(
        "cannot create a folder in ", parent, variable.empty() ? "" : absl::StrCat(" (", variable, ")"), ": ",
        std::strerror(errno), "; ",
        remedy.empty() ? "set TMPDIR to an existing folder that this user can write to" : remedy);
  }
  return TemporaryFolder(name, MakeLock(name));
}

TemporaryFolder::TemporaryFolder(std::string path, FileDescriptor lock)
    : path_(std::move(path)), lock_(std::move(lock)) {}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace psring
