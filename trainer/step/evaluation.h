// Test accuracy, from copies of the weights that are taken during training and scored after it.
#pragma once

#include <cstddef>
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

// Enqueues forward of some batches, and of the loss, whose sum is added to a score. `first`: the number of
// the first batch.
using RunBatches =
    std::function<absl::Status(const std::vector<std::vector<int64_t>>& batches, size_t first)>;
// The loop of every evaluation: `run`s the batches of `data`, each sample once, `at_once` together, of which
// the last ones may be empty. `on_batches`: called when these are complete, with the number of predictions so
// far. Sets memory.downloaded_score(), to which `run` adds.
absl::Status EvaluateBatches(const Dataset& data, int batch, size_t at_once, BatchMemory& memory,
                             Stream& stream, const RunBatches& run,
                             const std::function<void(int64_t predictions)>& on_batches);

// Of a whole model, one batch after the other: loss and number of correct answers in evaluation mode. `rows`:
// of a model with tables, planned for the batches of EvaluationBatches with `batch`, with values; else null.
// `activations` and `memory`: for at least `batch` samples, on the device of `stream`.
absl::StatusOr<BatchScore> Evaluate(Model& model, ConstSpan weights, Span buffers, const Dataset& data,
                                    int batch, Activations& activations, BatchMemory& memory, Stream& stream,
                                    TouchedRows* rows,
                                    const std::function<void(int64_t predictions)>& on_batches);

}  // namespace psring
