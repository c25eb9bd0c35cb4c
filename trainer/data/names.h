// The error for a name that is not in a table.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace psring {

// NotFound: "unknown model 'mpl'; did you mean 'mlp'? There are mlp, cnn". `meant`: what to suggest; empty:
// the known name nearest to `name`.
absl::Status UnknownName(const std::string& kind, const std::string& name,
                         const std::vector<std::string>& known, const std::string& meant = "");

}  // namespace psring
