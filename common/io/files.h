// Writes whole files, and the steps of writing one so that it survives a crash. Errors name the path and the
// system's reason. Reading is in common/base/read_file.h, since --config needs it.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "common/base/read_file.h"

namespace psring {

// Writes a temporary file beside `path` and renames it: a reader sees the complete new file, or the previous
// one or none. Does not force it to disk.
absl::Status WriteFile(const std::string& path, const std::string& text);
// The same, and the file is on disk when this returns.
absl::Status WriteFileToDisk(const std::string& path, const std::string& text);

// Writes all `bytes` at the position of the open file `fd`; `path` is its name.
absl::Status WriteToFile(int fd, const void* data, size_t bytes, const std::string& path);
absl::Status ForceToDisk(int fd, const std::string& path);
// Forces a folder's entries to disk, after a rename; `with_files`: and the files in it.
absl::Status ForceFolderToDisk(const std::string& path, bool with_files = false);

}  // namespace psring
