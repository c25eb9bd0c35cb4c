#include "trainer/step/gradient_pass.h"

#include <algorithm>

#include "common/base/check.h"
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

absl::Status RecordedPass::Run(Stream& stream, const Enqueue& enqueue, const Ready& ready) {
  switch (runs_++) {
    case 0:
      return enqueue(ready);
    case 1:
      return Record(stream, enqueue, ready);
    default:
      for (const Piece& piece : pieces_) {
        if (piece.work != nullptr) piece.work->Replay();
        if (piece.ready.has_value()) ready(*piece.ready);
      }
      return absl::OkStatus();
  }
}

absl::Status RecordedPass::Record(Stream& stream, const Enqueue& enqueue, const Ready& ready) {
  absl::Status status = BeginRecording(stream);
  // Ends a piece and executes it.
  const auto end = [&](std::optional<ReadyRange> range) {
    if (!status.ok()) return;
    absl::StatusOr<std::unique_ptr<RecordedWork>> work = EndRecording(stream);
    status = work.status();
    if (!status.ok()) return;
    pieces_.push_back({*std::move(work), range});
    if (pieces_.back().work != nullptr) pieces_.back().work->Replay();
  };
  const absl::Status enqueued = enqueue([&](ReadyRange range) {
    end(range);
    ready(range);
    if (status.ok()) status = BeginRecording(stream);
  });
  end(std::nullopt);
  return enqueued.ok() ? status : enqueued;
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
  const auto last = passes_.find({Part::kStep, batches - 1, global_samples});
  return last != passes_.end() && last->second.repeats();
}

absl::Status GradientPass::Run(bool records, const Key& key, const RecordedPass::Enqueue& enqueue,
                               const RecordedPass::Ready& ready) {
  return records ? passes_[key].Run(parts_.compute, enqueue, ready) : enqueue(ready);
}

absl::Status GradientPass::Compute(const Dataset& data, const SampledStep& drawn, const StepInfo& info,
                                   int64_t delay_step) {
  const std::vector<std::vector<int64_t>>& batches = drawn.batches;
  pipeline_.BeginStep();
  parts_.batches.ClearScore(parts_.compute);
  stamps_.assign(batches.size(), {});
  for (size_t i = 0; i < batches.size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(const Batch batch,
                            parts_.rows != nullptr
                                ? parts_.batches.Load(parts_.rows->gathered(i), parts_.compute)
                                : parts_.batches.Load(data, batches[i], parts_.compute));
    if (options_.dropout > 0) sample_seeds_ = SampleSeeds(options_.seed, drawn.epoch, batches[i]);
    const auto enqueue = [&](const RecordedPass::Ready&) { return ForwardAndBackward(i, batch, delay_step); };
    PSRING_RETURN_IF_ERROR(Run(records_steps(), {Part::kStep, i, info.global_samples}, enqueue, {}));
  }
  parts_.batches.DownloadScore(parts_.compute);
  PSRING_CHECK(info.is_repeated || pipeline_.all_ready());
  return absl::OkStatus();
}

absl::Status GradientPass::ForwardAndBackward(size_t batch_of_step, const Batch& batch, int64_t delay_step) {
  Stamps& stamps = stamps_[batch_of_step];
  const bool records = options_.cuda_graph && !records_steps() && batch.size > 0;
  parts_.compute.Stamp(stamps.forward_ns);
  if (batch_of_step == 0) parts_.delay.Begin(delay_step);
  const auto forward = [&](const RecordedPass::Ready&) {
    return parts_.model.Forward(StateOf(batch_of_step), batch, parts_.activations, parts_.batches.score(),
                                parts_.compute);
  };
  PSRING_RETURN_IF_ERROR(Run(records, {Part::kForward, 0, batch.size}, forward, {}));
  parts_.delay.Prolong();
  parts_.compute.Stamp(stamps.backward_ns);
  PSRING_RETURN_IF_ERROR(Backward(batch_of_step, batch, records));
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

// Leaves the sum of the gradients of the step's batches so far. Order of additions: first the accumulated
// batches of a worker, then the workers that micro-batches represent, as a server in deterministic mode adds
// them. Buckets are complete only after the last batch.
absl::Status GradientPass::Backward(size_t batch_of_step, const Batch& batch, bool records) {
  const size_t each = static_cast<size_t>(options_.micro_batches);
  const bool first_of_worker = batch_of_step % each == 0, first_worker = batch_of_step < each;
  const bool worker_done = (batch_of_step + 1) % each == 0, step_done = batch_of_step + 1 == stamps_.size();
  const Span sum = first_worker ? parts_.gradient : worker_gradient_.span();
  const Span to = first_of_worker ? sum : micro_gradient_.span();
  const RecordedPass::Ready on_ready = [&](ReadyRange range) {
    const auto add = [&](Span into, Span from) {
      parts_.ops.Add(into.Slice(range.first, range.count), from.Slice(range.first, range.count),
                     parts_.compute);
    };
    if (!first_of_worker) add(sum, to);
    if (worker_done && !first_worker) add(parts_.gradient, sum);
    parts_.delay.Prolong();
    if (step_done) pipeline_.Ready(range);
    parts_.delay.Resume();
  };
  const auto backward = [&](const RecordedPass::Ready& ready) {
    return parts_.model.Backward(StateOf(batch_of_step), batch, parts_.activations, to, parts_.compute,
                                 ready);
  };
  PSRING_RETURN_IF_ERROR(Run(records, {Part::kBackward, batch_of_step, batch.size}, backward, on_ready));
  if (parts_.rows != nullptr && worker_done && each > 1) parts_.rows->EndWorker(step_done);
  return absl::OkStatus();
}

}  // namespace psring
