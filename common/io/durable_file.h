// What it takes for a file to outlast a crash: all of it written, and forced to the disk. Errors name the
// path.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace psring {

// Unavailable, "cannot WHAT PATH: No space left on device", from errno.
absl::Status FileError(const std::string& what, const std::string& path);

// All of `bytes`, to where the open file `fd` stands; `path` is its name.
absl::Status WriteToFile(int fd, const void* data, size_t bytes, const std::string& path);
absl::Status ForceToDisk(int fd, const std::string& path);
// The names in it: after a rename.
absl::Status ForceFolderToDisk(const std::string& path);

}  // namespace psring
