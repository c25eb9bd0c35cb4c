// The limit of this process's address space (ulimit -v). Libraries abort when it is exceeded, so it is
// checked before they start threads.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/status.h"

namespace psring {

struct AddressSpace {
  size_t limit = 0;  // in bytes
  size_t left = 0;
};
// nullopt: unlimited.
std::optional<AddressSpace> LimitOfAddressSpace();

// FailedPrecondition, in one line: one of psring's programs needs more, even without the buffers of a job.
absl::Status CheckAddressSpace();

}  // namespace psring
