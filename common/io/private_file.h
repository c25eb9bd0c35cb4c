// Reads small files that other users must not be able to read: the job's secret and TLS keys.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace psring {

// The content of a regular file of at most `most_bytes`. Never waits. NotFound: there is no such file.
// Unavailable: "cannot read PATH: Permission denied". FailedPrecondition, whose message begins with `what`
// ("the job's secret in PATH"): it is larger, other users can access it, or it belongs to another user.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, const std::string& what,
                                            size_t most_bytes);

}  // namespace psring
