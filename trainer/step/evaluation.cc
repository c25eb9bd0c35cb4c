#include "trainer/step/evaluation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/device/counting_device.h"
#include "trainer/data/sampler.h"
#include "trainer/tables/touched_rows.h"

namespace psring {

absl::Status CheckSnapshots(int64_t eval_every, int64_t total_steps, size_t parameters) {
  constexpr int64_t kMaxCount = 64;
  constexpr int64_t kMaxBytes = int64_t{512} << 20;
  if (eval_every == 0) return absl::OkStatus();  // the final weights need no copy
  const int64_t bytes = std::max<int64_t>(1, parameters * sizeof(float));
  const int64_t kept = std::max<int64_t>(1, std::min(kMaxCount, kMaxBytes / bytes));
  const int64_t wanted = total_steps / eval_every;
  if (wanted <= kept) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("--eval_every ", eval_every, " asks for ", wanted,
                                                   " evaluations in ", total_steps, " steps, but at most ",
                                                   kept, " copies of the weights are kept; use --eval_every ",
                                                   (total_steps + kept - 1) / kept, " or more"));
}

absl::StatusOr<int> EvaluationBatch(const Model& model, const SampleSpec& samples, int batch,
                                    Device& device) {
  constexpr int kSamples = 128;
  constexpr size_t kMaxBytes = size_t{128} << 20;
  if (samples.labels > 1) return batch;
  CountingDevice activations(device);
  // With and without --recompute the same batch, and so the same order of additions.
  PSRING_RETURN_IF_ERROR(model.NewActivations(kSamples, Keep::kAll, activations).status());
  return activations.bytes() <= kMaxBytes ? kSamples : batch;
}

absl::StatusOr<BatchScore> Evaluate(Model& model, ConstSpan weights, Span buffers, const Dataset& data,
                                    int batch, Activations& activations, BatchMemory& memory, Stream& stream,
                                    TouchedRows* rows, const std::function<void(int64_t)>& on_batch) {
  ModelState state{.weights = weights, .buffers = buffers, .mode = PassMode::kEvaluation, .rows = rows};
  size_t number = 0;
  int64_t predictions = 0;
  memory.ClearScore(stream);
  for (const std::vector<int64_t>& indices : EvaluationBatches(data.count(), batch, /*rank=*/0, 1)) {
    PSRING_ASSIGN_OR_RETURN(const Batch part, memory.Load(data, indices, stream));
    if (rows != nullptr) state.lookups = &rows->batch(number++);
    PSRING_RETURN_IF_ERROR(model.Forward(state, part, activations, memory.score(), stream));
    if (on_batch == nullptr) continue;
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    on_batch(predictions += part.size * data.spec().labels);
  }
  memory.DownloadScore(stream);
  PSRING_RETURN_IF_ERROR(stream.Synchronize());
  return memory.downloaded_score();
}

}  // namespace psring
