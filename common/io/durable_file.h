// Writing a file so that it survives a crash: completely written and forced to disk. Errors name the path.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace psring {

// Unavailable, "cannot WHAT PATH: No space left on device", from errno.
absl::Status FileError(const std::string& what, const std::string& path);

// Writes all `bytes` at the position of the open file `fd`; `path` is its name.
absl::Status WriteToFile(int fd, const void* data, size_t bytes, const std::string& path);
absl::Status ForceToDisk(int fd, const std::string& path);
// Forces a folder's entries to disk, after a rename.
absl::Status ForceFolderToDisk(const std::string& path);

}  // namespace psring
