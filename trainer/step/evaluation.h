// Test accuracy without disturbing training: copies of the weights are taken on the way and scored
// afterwards.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "trainer/data/data.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"

namespace psring {

// Weights as they were at a moment of training. test_loss and test_accuracy of `point` are filled later.
struct WeightsCopy {
  CurvePoint point;
  std::vector<float> weights;
};

// ResourceExhausted, with the --eval_every to take instead, where `total_steps` steps would leave more
// snapshots than are kept: 64, and 512 MiB. Ask before training.
absl::Status CheckSnapshots(int64_t eval_every, int64_t total_steps, size_t parameters);

// Loss and right answers over all of `data`, each sample once. `memory` is for `batch` samples at least, on
// the device of `stream`.
absl::StatusOr<BatchScore> Evaluate(Model& model, ConstSpan weights, const Dataset& data, int batch,
                                    BatchMemory& memory, Stream& stream);

}  // namespace psring
