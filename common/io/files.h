// Whole text files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

// Writes a temporary file beside `path` and renames it, so that a reader sees the complete file or none.
// Errors name the path and the system's reason.
absl::Status WriteFile(const std::string& path, const std::string& text);
// NotFound if there is no such file.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace psring
