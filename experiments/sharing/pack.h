// One archive of a run folder, to publish beside a paper.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace psring {

// Writes a tar archive (POSIX ustar) with all regular files of `folder`, below the folder's name, and
// SHA256SUMS, which `sha256sum -c` verifies. Links, checkpoints and `archive` itself are left out; owners and
// times are too, so equal folders give equal archives. InvalidArgument: not a run folder, or a path that
// ustar cannot hold.
absl::Status PackRun(const std::string& folder, const std::string& archive);

}  // namespace psring
