// The gradients of N workers, computed one after the other by one process: on one machine the same bits that
// N processes compute from the same weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "common/ops/ops.h"
#include "common/options/training_options.h"
#include "ps_server/protocol/server_job.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// Keeps each worker's gradient until its next one is computed, but not its weights.
class LogicalWorkers {
 public:
  // Host memory. InvalidArgument, NotFound: as for RunWorker. ResourceExhausted: N gradients (and
  // `copies_each` more buffers of that size for each worker) do not fit into memory.
  static absl::StatusOr<std::unique_ptr<LogicalWorkers>> Create(const TrainingOptions& options, int workers,
                                                                const DataSplits& data, Device& device,
                                                                int copies_each);

  // The gradient of `worker`'s `step` on `weights`; returns the mean loss over its samples. OutOfRange: the
  // loss is not finite.
  absl::StatusOr<double> Compute(int worker, int64_t step, ConstSpan weights);
  Span gradient(int worker) const { return gradients_[static_cast<size_t>(worker)].span(); }
  // In `worker`'s gradient.
  int64_t samples(int worker) const { return samples_[static_cast<size_t>(worker)]; }

  std::vector<float> InitialWeights() const { return model_->InitialWeights(options_.seed); }
  // Of the test data (or of the validation data: --debug.score).
  absl::StatusOr<CurvePoint> Score(ConstSpan weights, CurvePoint point,
                                   const std::function<void(int64_t done, int64_t planned)>& on_batch);

  const StepPlan& plan() const { return plan_; }
  const StrategyRow& strategy() const { return strategy_; }
  const UpdatePlan& updates() const { return updates_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Of the flat buffers.
  size_t elements() const { return model_->parameters().count(); }
  size_t parameters() const { return model_->parameters().parameters(); }
  std::string ops_name() const { return ops_->name(); }
  // The job of a server with `workers` workers.
  ServerJob JobOf(const std::string& consistency, int workers) const;

 private:
  LogicalWorkers(const TrainingOptions& options, const DataSplits& data) : options_(options), data_(data) {}

  Span buffers() { return {buffers_.data(), buffers_.size()}; }

  const TrainingOptions options_;
  const DataSplits& data_;
  StrategyRow strategy_;
  StepPlan plan_;
  UpdatePlan updates_;
  std::vector<std::string> warnings_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Model> model_;
  Activations activations_;
  int evaluation_batch_ = 0;
  std::optional<BatchMemory> batches_;
  std::vector<float> buffers_;                // of worker 0: evaluation uses its running statistics
  Buffer micro_gradient_;                     // for accumulation
  std::vector<Buffer> gradients_;             // by worker
  std::vector<int64_t> samples_;              // in gradients_
  std::vector<DistributedSampler> samplers_;  // by worker
  std::vector<int64_t> next_step_;            // of the sampler, by worker
};

// ResourceExhausted, with an alternative: `bytes_each` for each of `workers` exceed `available`. Pure.
absl::Status CheckCopiesFit(int workers, uint64_t bytes_each, uint64_t available);

}  // namespace psring
