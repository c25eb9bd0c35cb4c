// Errors whose message is made of parts, as by absl::StrCat.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psring {

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <typename... Parts>
absl::Status FailedPrecondition(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}

}  // namespace psring
