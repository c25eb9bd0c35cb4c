#include "common/io/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "common/base/errors.h"
#include "common/base/file_descriptor.h"
#include "common/text/translate.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

absl::Status Replace(const std::string& path, const std::string& text, bool to_disk) {
  static std::atomic<int> count{0};  // two threads may write one path
  const std::string temporary = absl::StrCat(path, ".tmp-", ::getpid(), "-", count.fetch_add(1));
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return FileError("write", path);
  absl::Status status = WriteToFile(file, text.data(), text.size(), path);
  if (status.ok() && to_disk) status = ForceToDisk(file, path);
  if (::close(file) != 0 && status.ok()) status = FileError("write", path);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = FileError("write", path);
  if (!status.ok()) ::unlink(temporary.c_str());
  return status.ok() && to_disk ? ForceFolderToDisk(FolderOf(path)) : status;
}

}  // namespace

absl::Status WriteFile(const std::string& path, const std::string& text) {
  return Replace(path, text, /*to_disk=*/false);
}

absl::Status WriteFileToDisk(const std::string& path, const std::string& text) {
  return Replace(path, text, /*to_disk=*/true);
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

absl::Status ForceFolderToDisk(const std::string& path, bool with_files) {
  if (with_files) {
    std::error_code error;
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      if (!at->is_regular_file(error) || error) continue;
      const FileDescriptor file(open(at->path().c_str(), O_RDONLY | O_CLOEXEC));
      if (!file.valid()) return FileError("open", at->path());
      if (absl::Status forced = ForceToDisk(file.get(), at->path()); !forced.ok()) return forced;
    }
    if (error) return Unavailable(Tr("cannot read $0: $1", path, Translation(error.message())));
  }
  const FileDescriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return FileError("open", path);
  return ForceToDisk(folder.get(), path);
}

}  // namespace psring
