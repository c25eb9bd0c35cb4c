#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

// Whether `device` supports the precision. InvalidArgument names a device that does.
absl::Status CheckPrecision(const Device& device, Precision precision);

// The fastest Ops for `device`, which must outlive them. `threads`: cores that one op may use, on a CPU.
// InvalidArgument: see CheckPrecision.
absl::StatusOr<std::unique_ptr<Ops>> MakeOps(Device& device, int threads,
                                             Precision precision = Precision::kFloat32);

// For callers that only add, inspect and update: without layers, so that a GPU needs no library for them.
absl::StatusOr<std::unique_ptr<Ops>> MakeUpdateOps(Device& device);

}  // namespace psring
