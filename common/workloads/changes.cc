#include "common/workloads/changes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace psring {

Workload InPieces(const Workload& workload, int64_t most_bytes) {
  const int64_t most = std::max<int64_t>(1, most_bytes / 4);  // values of 4 bytes
  Workload cut = workload;
  cut.tensors.clear();
  bool declared = true;
  for (const GradientTensor& tensor : workload.tensors) {
    const int64_t values = tensor.bytes / 4, pieces = (values + most - 1) / most;
    PSRING_CHECK(pieces >= 1);
    if (pieces > 1) declared = false;
    for (int64_t i = 0; i < pieces; ++i) {
      GradientTensor piece = tensor;
      if (pieces > 1) absl::StrAppend(&piece.name, ".", i);
      piece.bytes = 4 * (values * (i + 1) / pieces - values * i / pieces);
      cut.tensors.push_back(std::move(piece));
    }
  }
  if (!declared) {
    for (GradientTensor& tensor : cut.tensors) tensor.declared = -1;
  }
  return cut;
}

Workload AfterBackward(Workload workload) {
  for (GradientTensor& tensor : workload.tensors) tensor.ready_ms = workload.backward_ms;
  return workload;
}

Workload WithoutComputing(Workload workload) {
  workload.forward_ms = workload.backward_ms = 0;
  for (GradientTensor& tensor : workload.tensors) tensor.ready_ms = 0;
  return workload;
}

}  // namespace psring
