#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// "auto", "cpu" or "cuda[:i]". "auto" is a GPU where this build can train on one and one is present, else the
// CPU. Errors say what is missing and what to do: no CUDA in this build, no driver, no device.
absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const std::string& spec);

// "auto" and "cuda" become the device of a rank, and of the server beside it: ranks of a host take its `gpus`
// in turn; "auto" is the CPU where there are none. Other specs stay as they are. Pure.
std::string DeviceOfRank(const std::string& spec, int local_rank, int gpus);

}  // namespace psring
