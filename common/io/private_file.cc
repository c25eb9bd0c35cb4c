#include "common/io/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"

namespace psring {
namespace {

bool IsOurGroup(gid_t group) {
  if (group == getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  return std::find(groups.begin(), groups.begin() + std::max(0, count), group) !=
         groups.begin() + std::max(0, count);
}

absl::Status CheckPrivate(const std::string& path, const std::string& what, const struct stat& file,
                          size_t most_bytes) {
  const auto refused = [&](const auto&... why) { return FailedPrecondition(what, " ", why...); };
  if (!S_ISREG(file.st_mode)) return refused("is not a regular file");
  if (file.st_uid != geteuid() && file.st_uid != 0) {
    return refused("belongs to user ", file.st_uid, ", and this process runs as user ", geteuid(),
                   "; give it to this user");
  }
  // Kubernetes mounts a Secret as root's, readable by the pod's group (fsGroup).
  const bool by_group = file.st_uid == 0 && (file.st_mode & S_IWGRP) == 0 && IsOurGroup(file.st_gid);
  if ((file.st_mode & (by_group ? S_IRWXO : S_IRWXO | S_IRWXG)) != 0) {
    return refused("is accessible to other users; run: chmod 600 ", path,
                   " (in Kubernetes: defaultMode: 0400)");
  }
  if (file.st_size > static_cast<off_t>(most_bytes)) return refused("is longer than ", most_bytes, " bytes");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, const std::string& what,
                                            size_t most_bytes) {
  // Without waiting for the writer of a FIFO.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat file = {};
  if (!fd.valid() || fstat(fd.get(), &file) != 0) return FileError("read", path);
  PSRING_RETURN_IF_ERROR(CheckPrivate(path, what, file, most_bytes));
  std::string text(most_bytes, 0);
  const ssize_t bytes = read(fd.get(), text.data(), text.size());
  if (bytes < 0) return FileError("read", path);
  text.resize(static_cast<size_t>(bytes));
  return text;
}

}  // namespace psring
