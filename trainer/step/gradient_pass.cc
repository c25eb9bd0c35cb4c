#include "trainer/step/gradient_pass.h"

#include <algorithm>

#include "common/base/check.h"
#include "trainer/data/sampler.h"
#include "trainer/tables/touched_rows.h"

namespace psring {

void BucketPipeline::BeginStep() {
  next_ = 0;
  order_.clear();
  missing_.clear();
  for (const Bucket& bucket : buckets_) missing_.push_back(bucket.count);
}

void BucketPipeline::Ready(ReadyRange range) {
  order_.push_back(range);
  const size_t end = range.first + range.count;
  for (size_t b = next_; b < buckets_.size(); ++b) {
    const size_t from = std::max(buckets_[b].first, range.first);
    const size_t to = std::min(buckets_[b].first + buckets_[b].count, end);
    if (from >= to) continue;
    PSRING_CHECK(to - from <= missing_[b]);
    missing_[b] -= to - from;
  }
  if (all_ready() || missing_[next_] > 0) return;
  // One event for all buckets that end with this layer.
  const size_t first = next_;
  while (next_ < buckets_.size() && missing_[next_] == 0) ++next_;
  strategy_.GradientReady(absl::MakeConstSpan(buckets_).subspan(first, next_ - first), compute_.Record());
}

absl::StatusOr<std::unique_ptr<GradientPass>> GradientPass::Create(const TrainingOptions& options,
                                                                   const Parts& parts) {
  auto pass = std::unique_ptr<GradientPass>(new GradientPass(options, parts));
  const size_t bytes = parts.gradient.bytes();
  if (options.reference_workers > 1) {
    PSRING_ASSIGN_OR_RETURN(pass->worker_gradient_, parts.device.Allocate(bytes));
  }
  if (options.micro_batches > 1) {
    PSRING_ASSIGN_OR_RETURN(pass->micro_gradient_, parts.device.Allocate(bytes));
  }
  pass->stamps_.reserve(static_cast<size_t>(options.reference_workers * options.micro_batches));
  return pass;
}

bool GradientPass::Repeats(size_t batches, int64_t global_samples) const {
  const auto last = step_passes_.find({batches - 1, global_samples});
  return last != step_passes_.end() && last->second.repeats();
}

absl::Status GradientPass::Compute(const Dataset& data, int64_t epoch,
                                   const std::vector<std::vector<int64_t>>& batches, const StepInfo& info,
                                   int64_t delay_step) {
  pipeline_.BeginStep();
  parts_.batches.ClearScore(parts_.compute);
  stamps_.assign(batches.size(), {});
  for (size_t i = 0; i < batches.size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(const Batch batch,
                            parts_.rows != nullptr
                                ? parts_.batches.Load(parts_.rows->gathered(i), parts_.compute)
                                : parts_.batches.Load(data, batches[i], parts_.compute));
    if (options_.dropout > 0) sample_seeds_ = SampleSeeds(options_.seed, epoch, batches[i]);
    if (!records_steps()) {
      PSRING_RETURN_IF_ERROR(ForwardAndBackward(i, batch, delay_step));
      continue;
    }
    const auto enqueue = [&](const RecordedPass::Ready&) { return ForwardAndBackward(i, batch, delay_step); };
    RecordedPass& pass = step_passes_[{i, info.global_samples}];
    PSRING_RETURN_IF_ERROR(pass.Run(parts_.compute, enqueue, {}));
  }
  parts_.batches.DownloadScore(parts_.compute);
  PSRING_CHECK(info.is_repeated || pipeline_.all_ready());
  return absl::OkStatus();
}

absl::Status GradientPass::ForwardAndBackward(size_t batch_of_step, const Batch& batch, int64_t delay_step) {
  Stamps& stamps = stamps_[batch_of_step];
  parts_.compute.Stamp(stamps.forward_ns);
  if (batch_of_step == 0) parts_.delay.Begin(delay_step);
  PSRING_RETURN_IF_ERROR(Forward(batch_of_step, batch));
  parts_.delay.Prolong();
  parts_.compute.Stamp(stamps.backward_ns);
  PSRING_RETURN_IF_ERROR(Backward(static_cast<int>(batch_of_step), batch));
  parts_.compute.Stamp(stamps.end_ns);
  const bool step_done = batch_of_step + 1 == stamps_.size();
  if (step_done && records_steps()) parts_.strategy.recording->FinishBackward();
  return absl::OkStatus();
}

ModelState GradientPass::StateOf(size_t batch_of_step) const {
  const bool first_worker = batch_of_step < static_cast<size_t>(options_.micro_batches);
  return {.weights = parts_.weights,
          .buffers = first_worker ? parts_.buffers : Span{},
          .statistics = parts_.statistics,
          .rows = parts_.rows,
          .lookups = parts_.rows != nullptr ? &parts_.rows->batch(batch_of_step) : nullptr,
          .sample_seeds = sample_seeds_.empty() ? nullptr : sample_seeds_.data()};
}

absl::Status GradientPass::Forward(size_t batch_of_step, const Batch& batch) {
  const auto enqueue = [&](const RecordedPass::Ready&) {
    return parts_.model.Forward(StateOf(batch_of_step), batch, parts_.activations, parts_.batches.score(),
                                parts_.compute);
  };
  if (records_passes() && batch.size > 0) return forward_passes_[batch.size].Run(parts_.compute, enqueue, {});
  return enqueue({});
}

// Leaves the sum of the gradients of the step's batches so far. Order of additions: first the accumulated
// batches of a worker, then the workers that micro-batches represent, as a server in deterministic mode adds
// them. Buckets are complete only after the last batch.
absl::Status GradientPass::Backward(int batch_of_step, const Batch& batch) {
  const int of_worker = batch_of_step % options_.micro_batches;
  const bool first_worker = batch_of_step < options_.micro_batches;
  const bool worker_done = of_worker + 1 == options_.micro_batches;
  const bool step_done = batch_of_step + 1 == options_.micro_batches * options_.reference_workers;
  const Span sum = first_worker ? parts_.gradient : worker_gradient_.span();
  const Span to = of_worker == 0 ? sum : micro_gradient_.span();
  const RecordedPass::Ready on_ready = [&](ReadyRange range) {
    const auto add = [&](Span into, Span from) {
      parts_.ops.Add(into.Slice(range.first, range.count), from.Slice(range.first, range.count),
                     parts_.compute);
    };
    if (of_worker > 0) add(sum, to);
    if (worker_done && !first_worker) add(parts_.gradient, sum);
    parts_.delay.Prolong();
    if (step_done) pipeline_.Ready(range);
    parts_.delay.Resume();
  };
  const auto enqueue = [&](const RecordedPass::Ready& ready) {
    return parts_.model.Backward(StateOf(static_cast<size_t>(batch_of_step)), batch, parts_.activations, to,
                                 parts_.compute, ready);
  };
  if (records_passes() && batch.size > 0) {
    return backward_passes_[{batch_of_step, batch.size}].Run(parts_.compute, enqueue, on_ready);
  }
  PSRING_RETURN_IF_ERROR(enqueue(on_ready));
  if (parts_.rows != nullptr && worker_done && options_.micro_batches > 1) parts_.rows->EndWorker(step_done);
  return absl::OkStatus();
}

}  // namespace psring
