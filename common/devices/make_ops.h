#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

// Whether `device` computes so. InvalidArgument says what would.
absl::Status CheckPrecision(const Device& device, Precision precision);

// The fastest Ops for `device`, which must outlive them. InvalidArgument: see CheckPrecision.
absl::StatusOr<std::unique_ptr<Ops>> MakeOps(Device& device, int threads,
                                             Precision precision = Precision::kFloat32);

// For who only adds, looks and updates: without layers, so that a GPU needs no library for them.
absl::StatusOr<std::unique_ptr<Ops>> MakeUpdateOps(Device& device);

}  // namespace psring
