// Whole files, and the steps of writing one so that it survives a crash. Errors name the path and the
// system's reason.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace psring {

// Writes a temporary file beside `path` and renames it: a reader sees the complete new file, or the previous
// one or none. Does not force it to disk.
absl::Status WriteFile(const std::string& path, const std::string& text);
// NotFound if there is no such file.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// From errno: "cannot WHAT PATH: No space left on device", NotFound or Unavailable.
absl::Status FileError(const std::string& what, const std::string& path);

// Writes all `bytes` at the position of the open file `fd`; `path` is its name.
absl::Status WriteToFile(int fd, const void* data, size_t bytes, const std::string& path);
absl::Status ForceToDisk(int fd, const std::string& path);
// Forces a folder's entries to disk, after a rename.
absl::Status ForceFolderToDisk(const std::string& path);

}  // namespace psring
