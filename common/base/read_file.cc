#include "common/base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"

namespace psring {
namespace {

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status CannotRead(const std::string& path, const std::string& why) {
  return InvalidArgument(Tr("cannot read $0: $1", path, why));
}

absl::Status TooLarge(const std::string& path, const std::string& bytes, uint64_t most_bytes) {
  return CannotRead(path, absl::StrCat("it has ", bytes, " bytes; the limit is ", most_bytes));
}

}  // namespace

uint64_t MostWeightsBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
  if (pages <= 0 || page_bytes <= 0) return uint64_t{1} << 32;
  return static_cast<uint64_t>(pages) / 2 * static_cast<uint64_t>(page_bytes);
}

absl::Status FileError(const std::string& what, const std::string& path) {
  const auto code = errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable;
  const std::string why(Translation(std::strerror(errno)));
  const std::string cannot = absl::StrCat("cannot ", what, " $0: $1");  // of the catalog
  return absl::Status(code, Tr(cannot, path, why));
}

absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path, uint64_t most_bytes,
                                               SymbolicLinks links) {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const int no_link = links == SymbolicLinks::kReject ? O_NOFOLLOW : 0;
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | no_link));
  if (!file.valid() && errno == ELOOP && no_link != 0) return CannotRead(path, "it is a symbolic link");
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info) != 0) return FileError("read", path);
  if (!S_ISREG(info.st_mode)) {
    return CannotRead(path, absl::StrCat("it is ", KindOf(info.st_mode), ", not a regular file"));
  }
  if (static_cast<uint64_t>(info.st_size) > most_bytes) {
    return TooLarge(path, absl::StrCat(info.st_size), most_bytes);
  }
  return file;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t most_bytes, SymbolicLinks links) {
  PSRING_ASSIGN_OR_RETURN(const FileDescriptor file, OpenRegularFile(path, most_bytes, links));
  std::string text;
  struct stat info;
  if (fstat(file.get(), &info) == 0 && info.st_size > 0) {
    text.reserve(std::min(static_cast<uint64_t>(info.st_size), most_bytes));
  }
  char block[1 << 16];
  while (true) {
    const ssize_t n = read(file.get(), block, sizeof(block));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("read", path);
    if (n == 0) return text;
    // A file can grow, and files of /proc do not tell their size.
    if (static_cast<uint64_t>(n) > most_bytes - text.size()) {
      return TooLarge(path, absl::StrCat("more than ", most_bytes), most_bytes);
    }
    text.append(block, static_cast<size_t>(n));
  }
}

}  // namespace psring
