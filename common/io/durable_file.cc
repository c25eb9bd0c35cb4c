#include "common/io/durable_file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/file_descriptor.h"

namespace psring {

absl::Status FileError(const std::string& what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

absl::Status WriteToFile(int fd, const void* data, size_t bytes, const std::string& path) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("write", path);
    from += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status ForceToDisk(int fd, const std::string& path) {
  return fsync(fd) == 0 ? absl::OkStatus() : FileError("force to the disk", path);
}

absl::Status ForceFolderToDisk(const std::string& path) {
  const FileDescriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return FileError("open", path);
  return ForceToDisk(folder.get(), path);
}

}  // namespace psring
