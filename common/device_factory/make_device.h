#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// "auto", "cpu" or "cuda[:i]". "auto" is a GPU if this build can train on one and one is present, else the
// CPU. Errors name what is missing and what to do: no CUDA in this build, no driver, no device.
absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const std::string& spec);

// Resolves "auto" and "cuda" for a rank and the server beside it: the ranks of a host take its `gpus` in
// turn; without any, "auto" is the CPU. Other specs are returned unchanged. Pure.
std::string DeviceOfRank(const std::string& spec, int local_rank, int gpus);

}  // namespace psring
