#include "common/io/file_content.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/hash.h"

namespace psring {

FileContent::FileContent(std::string bytes)
    : bytes_(std::make_shared<const std::string>(std::move(bytes))), size_(bytes_->size()) {}

absl::StatusOr<FileContent> FileContent::Open(const std::string& path, SymbolicLinks links) {
  FileContent content;
  PSRING_ASSIGN_OR_RETURN(FileDescriptor file, OpenRegularFile(path, INT64_MAX, links));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return FileError("read", path);
  content.file_ = std::make_shared<const FileDescriptor>(std::move(file));
  content.path_ = path;
  content.size_ = static_cast<uint64_t>(info.st_size);
  return content;
}

absl::Status FileContent::Read(uint64_t at, size_t bytes, void* to) const {
  if (at > size_ || bytes > size_ - at) return DataLoss("it ends early");
  if (bytes_ != nullptr) {
    if (bytes > 0) std::memcpy(to, bytes_->data() + at, bytes);
    return absl::OkStatus();
  }
  auto* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(file_->get(), next, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("read", path_);
    if (n == 0) return DataLoss("it ends early");
    next += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FileContent::Hash() const {
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<char> piece(static_cast<size_t>(std::min<uint64_t>(size_, kPiece)));
  Hasher hasher;
  for (uint64_t at = 0; at < size_; at += piece.size()) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(piece.size(), size_ - at));
    PSRING_RETURN_IF_ERROR(Read(at, bytes, piece.data()));
    hasher.Add(piece.data(), bytes);
  }
  return hasher.Hex();
}

}  // namespace psring
