// Which GPUs there are. Two files hold it: gpu_probe_cuda.cc where CUDA was found, gpu_probe_absent.cc
// elsewhere.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// Names, in the order of their numbers. The error says why there are none: no CUDA in this build, no driver,
// no device.
absl::StatusOr<std::vector<std::string>> FindGpus();

}  // namespace psring
