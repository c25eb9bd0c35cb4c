// The same workload sent in another way: tensors in pieces, or all gradients at once. Pure.
#pragma once

#include "common/workloads/workload.h"

namespace psring {

// Tensors above `most_bytes` (above 0) become pieces of about equal size, at most that, ready when the tensor
// is; as BytePS and Poseidon send them.
Workload InPieces(const Workload& workload, int64_t most_bytes);

// No gradient is ready before backward ends: communication does not overlap with it.
Workload AfterBackward(Workload workload);

// Computing takes no time: only the exchange is left.
Workload WithoutComputing(Workload workload);

}  // namespace psring
