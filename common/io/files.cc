#include "common/io/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/io/durable_file.h"

namespace psring {
namespace {

absl::Status FileError(const std::string& what, const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::Status WriteFile(const std::string& path, const std::string& text) {
  static std::atomic<int> count{0};  // two threads may write one path
  const std::string temporary = absl::StrCat(path, ".tmp-", ::getpid(), "-", count.fetch_add(1));
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return FileError("write", path, errno);
  absl::Status status = WriteToFile(file, text.data(), text.size(), path);
  if (::close(file) != 0 && status.ok()) status = FileError("write", path, errno);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = FileError("write", path, errno);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return FileError("read", path, errno);
  std::string text;
  struct stat info;
  if (::fstat(file, &info) == 0 && info.st_size > 0) text.reserve(static_cast<size_t>(info.st_size));
  char block[1 << 16];
  while (true) {
    const ssize_t n = ::read(file, block, sizeof(block));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::close(file);
      return FileError("read", path, error);
    }
    if (n == 0) break;
    text.append(block, static_cast<size_t>(n));
  }
  ::close(file);
  return text;
}

}  // namespace psring
