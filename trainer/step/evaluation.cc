#include "trainer/step/evaluation.h"

#include <algorithm>
#include <cstddef>

#include "common/base/check.h"
#include "common/base/errors.h"
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
  return ResourceExhausted("--eval_every ", eval_every, " asks for ", wanted, " evaluations in ", total_steps,
                           " steps, but at most ", kept, " copies of the weights are kept; use --eval_every ",
                           (total_steps + kept - 1) / kept, " or more");
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

absl::Status EvaluateBatches(const Dataset& data, int batch, size_t at_once, BatchMemory& memory,
                             Stream& stream, const RunBatches& run,
                             const std::function<void(int64_t)>& on_batches) {
  const std::vector<std::vector<int64_t>> all = EvaluationBatches(data.count(), batch, /*rank=*/0, 1);
  int64_t samples = 0;
  memory.ClearScore(stream);
  for (size_t first = 0; first < all.size(); first += at_once) {
    std::vector<std::vector<int64_t>> batches(at_once);
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first), std::min(at_once, all.size() - first),
                batches.begin());
    PSRING_RETURN_IF_ERROR(run(batches, first));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    for (const std::vector<int64_t>& done : batches) samples += static_cast<int64_t>(done.size());
    on_batches(samples * data.spec().labels);
  }
  memory.DownloadScore(stream);
  return stream.Synchronize();
}

absl::StatusOr<BatchScore> Evaluate(Model& model, ConstSpan weights, Span buffers, const Dataset& data,
                                    int batch, Activations& activations, BatchMemory& memory, Stream& stream,
                                    TouchedRows* rows, const std::function<void(int64_t)>& on_batches) {
  ModelState state{.weights = weights, .buffers = buffers, .mode = PassMode::kEvaluation, .rows = rows};
  const auto run = [&](const std::vector<std::vector<int64_t>>& batches, size_t first) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const Batch part, memory.Load(data, batches[0], stream));
    if (rows != nullptr) state.lookups = &rows->batch(first);
    return model.Forward(state, part, activations, memory.score(), stream);
  };
  PSRING_RETURN_IF_ERROR(EvaluateBatches(data, batch, /*at_once=*/1, memory, stream, run, on_batches));
  return memory.downloaded_score();
}

}  // namespace psring
