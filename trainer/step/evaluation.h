// Test accuracy, from copies of the weights that are taken during training and scored after it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "trainer/data/dataset.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"

namespace psring {

// Weights and buffers at one point of training. test_loss and test_accuracy of `point` are set later.
struct WeightsCopy {
  CurvePoint point;
  std::vector<float> weights, buffers;
};

// ResourceExhausted, with a possible --eval_every: `total_steps` steps would need more than 64 snapshots, or
// more than 512 MiB. Call it before training.
absl::Status CheckSnapshots(int64_t eval_every, int64_t total_steps, size_t parameters);

// Samples in a batch of Evaluate, if a step has `batch`: 128 pictures, if their activations fit into 128 MiB;
// otherwise as many as a step has.
absl::StatusOr<int> EvaluationBatch(const Model& model, const SampleSpec& samples, int batch, Device& device);

// `rows`: of a model with tables, planned for the batches of EvaluationBatches with `batch`, with values;
// else null. Loss and number of correct answers over `data`, each sample once, in evaluation mode.
// `activations` and `memory`: for at least `batch` samples, on the device of `stream`. `on_batch`: called
// after each batch, which is then complete, with the number of predictions so far.
absl::StatusOr<BatchScore> Evaluate(Model& model, ConstSpan weights, Span buffers, const Dataset& data,
                                    int batch, Activations& activations, BatchMemory& memory, Stream& stream,
                                    TouchedRows* rows = nullptr,
                                    const std::function<void(int64_t predictions)>& on_batch = nullptr);

}  // namespace psring
