// The bytes of a file, read in pieces from any place: a checkpoint may be larger than the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/base/read_file.h"

namespace psring {

// In memory or in an open file, which copies share. Thread-safe.
class FileContent {
 public:
  FileContent() = default;
  FileContent(std::string bytes);  // NOLINT(google-explicit-constructor): a text is one

  // Errors: see OpenRegularFile.
  static absl::StatusOr<FileContent> Open(const std::string& path,
                                          SymbolicLinks links = SymbolicLinks::kFollow);

  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // DataLoss: the file ends before; it may have become shorter.
  absl::Status Read(uint64_t at, size_t bytes, void* to) const;
  // HashBytes of all.
  absl::StatusOr<std::string> Hash() const;

 private:
  std::shared_ptr<const std::string> bytes_;  // null: in `file_`
  std::shared_ptr<const FileDescriptor> file_;
  std::string path_;
  uint64_t size_ = 0;
};

}  // namespace psring
