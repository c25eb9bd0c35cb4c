// Where the running program is.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace psring {

// The path of this program, whose folder also has psring's other programs. In a package (experiments/bundle),
// it is the script that has started this process and set PSRING_PROGRAM.
absl::StatusOr<std::string> OwnProgram();

// The path of the program `name` in that folder. NotFound: it is missing.
absl::StatusOr<std::string> FindProgram(const std::string& name);

}  // namespace psring
