#include "common/text/translate.h"
#include "experiments/machine/gpu_probe.h"

namespace psring {

absl::StatusOr<std::vector<std::string>> FindGpus() {
  return absl::UnimplementedError(Tr("this build has no CUDA"));
}

}  // namespace psring
