// Errors whose message is made of parts, as by absl::StrCat.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psring {

#define PSRING_ERROR(name)                            \
  template <typename... Parts>                        \
  absl::Status name(const Parts&... parts) {          \
    return absl::name##Error(absl::StrCat(parts...)); \
  }
PSRING_ERROR(AlreadyExists)
PSRING_ERROR(Cancelled)
PSRING_ERROR(DataLoss)
PSRING_ERROR(DeadlineExceeded)
PSRING_ERROR(FailedPrecondition)
PSRING_ERROR(Internal)
PSRING_ERROR(InvalidArgument)
PSRING_ERROR(NotFound)
PSRING_ERROR(PermissionDenied)
PSRING_ERROR(ResourceExhausted)
PSRING_ERROR(Unavailable)
PSRING_ERROR(Unimplemented)
#undef PSRING_ERROR

// `status` with `parts` before its message; OK stays OK.
template <typename... Parts>
absl::Status Prefixed(const absl::Status& status, const Parts&... parts) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(parts..., status.message()));
}

}  // namespace psring
