// Lists the GPUs. Implemented by gpu_probe_cuda.cc if the build has CUDA, else by gpu_probe_absent.cc.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// Names by device number. The error states why there are none: no CUDA in this build, no driver, no device.
absl::StatusOr<std::vector<std::string>> FindGpus();

}  // namespace psring
