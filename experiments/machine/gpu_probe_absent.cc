#include "common/text/translate.h"
#include "experiments/machine/machine.h"

namespace psring {

absl::StatusOr<std::vector<std::string>> FindGpus() {
  return absl::UnimplementedError(Tr("this build has no CUDA"));
}

}  // namespace psring
