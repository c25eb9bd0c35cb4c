// One archive of a run folder, to publish beside a paper.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace psring {

// Writes a tar archive with all regular files of `folder`, below the folder's name, and SHA256SUMS, which
// `sha256sum -c` verifies. Links, checkpoints and `archive` itself are left out; owners and times are too, so
// equal folders give equal archives. Must not be called while there is an Interrupt. InvalidArgument: not a
// run folder.
absl::Status PackRun(const std::string& folder, const std::string& archive);

}  // namespace psring
