// What a training says of itself: a step's figures, copies of its weights and their scores, the result.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/hash.h"
#include "trainer/step/training.h"

namespace psring {

// `figures`: of this step.
void Training::Describe(DataParallelFigures figures, StepRecord& record) {
  // What is left of forward and backward is what all replicas did at once, and the loss.
  record.compute_ms -= figures.moved_ms();
  record.comm_busy_ms = record.exposed_comm_ms = figures.moved_ms();
  record.payload_tx_bytes = static_cast<uint64_t>(figures.from_device0_bytes());
  record.payload_rx_bytes = static_cast<uint64_t>(figures.to_device0_bytes());
  if (record.warmup) return;
  const double share = 1 / static_cast<double>(plan_.steps);
  DataParallelFigures& mean = result_.data_parallel;
  mean.replicas = figures.replicas;
  for (double DataParallelFigures::*field :
       {&DataParallelFigures::inputs_bytes, &DataParallelFigures::inputs_ms,
        &DataParallelFigures::weights_bytes, &DataParallelFigures::weights_ms,
        &DataParallelFigures::output_gradients_bytes, &DataParallelFigures::output_gradients_ms,
        &DataParallelFigures::outputs_bytes, &DataParallelFigures::outputs_ms,
        &DataParallelFigures::gradients_bytes, &DataParallelFigures::gradients_ms,
        &DataParallelFigures::loss_ms, &DataParallelFigures::update_ms, &DataParallelFigures::compute_ms}) {
    mean.*field += share * figures.*field;
  }
  mean.device0_extra_mb = figures.device0_extra_mb + StateMb();
}

// The optimizer's state, which device 0 alone holds.
double Training::StateMb() const {
  const OptimizerKind kind = updates_.optimizer.kind;
  const int slots = kind == OptimizerKind::kAdam ? 2 : kind == OptimizerKind::kMomentum ? 1 : 0;
  return static_cast<double>(slots) * static_cast<double>(weights_.bytes()) / (1 << 20);
}

void Training::AddSpan(SpanKind kind, int64_t step, int64_t begin_ns, int64_t end_ns) {
  worker_.trace.Add({.kind = kind, .step = step, .begin_ns = begin_ns, .end_ns = end_ns});
}

void Training::Count(const StepRecord& record) {
  if (record.dropped) ++result_.dropped_gradients;
  made_.push_back({.step = record.step,
                   .samples = record.warmup || record.dropped ? 0 : record.samples,
                   .drawn = record.samples,
                   .loss = record.loss});
  trained_s_ += record.step_ms / 1000;
  if (!record.warmup) {
    if (!record.dropped) result_.samples += record.samples;
    result_.wall_s += record.step_ms / 1000;
  }
  for (const BucketRecord& bucket : record.buckets) {
    if (bucket.staleness < 0) continue;
    result_.pushes += bucket.pushes;
    result_.staleness_sum += bucket.staleness_sum;
    result_.staleness_max = std::max(result_.staleness_max, bucket.staleness);
  }
}

// The device has done all that was asked of it.
absl::StatusOr<ConstSpan> Training::WeightsOnHost() {
  const HostView view = HostView::Of(weights_, host_weights_);
  view.Download(*compute_);
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  return ConstSpan(view.host);
}

absl::Status Training::KeepSnapshot(int64_t steps_done) {
  // Where others have ended the training: the loss before.
  const size_t since = snapshot_made_ == made_.size() && !made_.empty() ? made_.size() - 1 : snapshot_made_;
  snapshot_made_ = made_.size();
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
  snapshots_.push_back({.point = {.samples = global_samples_,
                                  .updates = IsAsynchronous(*strategy_row_) ? version_ : steps_done,
                                  .wall_s = trained_s_,
                                  .train_loss = MeanLoss(since)},
                        .weights = {weights.floats(), weights.floats() + weights.count}});
  return absl::OkStatus();
}

// Over the samples of this rank's steps from made_[first] on.
double Training::MeanLoss(size_t first) const {
  double sum = 0;
  int64_t samples = 0;
  for (size_t i = first; i < made_.size(); ++i) {
    sum += made_[i].loss * static_cast<double>(made_[i].drawn);
    samples += made_[i].drawn;
  }
  return sum / static_cast<double>(std::max<int64_t>(1, samples));
}

absl::Status Training::ScoreCurve() {
  const Dataset& test = worker_.data.test;
  for (WeightsCopy& snapshot : snapshots_) {
    const Span weights = gradient_.device;  // which is no longer needed for gradients
    compute_->Copy(weights.data, snapshot.weights.data(), weights.bytes());
    PSRING_ASSIGN_OR_RETURN(const BatchScore score,
                            Evaluate(*model_, weights, test, kEvaluationBatch, *batches_, *compute_));
    snapshot.point.test_loss = score.loss_sum / test.count();
    snapshot.point.test_accuracy = static_cast<double>(score.correct) / test.count();
    result_.curve.push_back(snapshot.point);
    worker_.on_evaluation(snapshot.point);
  }
  return absl::OkStatus();
}

// All of the result that is known without the curve.
absl::Status Training::Describe() {
  result_.rank = worker_.rank;
  result_.world_size = worker_.world_size;
  result_.strategy = options_.strategy;
  result_.device = worker_.device.name();
  result_.ops = ops_->name();
  result_.algorithm = AlgorithmOf(*strategy_row_, options_.strategy);
  // One worker of a group has nobody to talk to, and does not ask for a group.
  if (strategy_row_->needs == Needs::kProcessGroup && worker_.group != nullptr) {
    result_.backend = worker_.group->info().backend;
    result_.algorithm = worker_.group->info().algorithm;
    result_.transport = worker_.group->info().transport;
    const bool pinned = worker_.device.gpu() >= 0 && !worker_.group->info().on_gpu;
    result_.payload = absl::StrCat(worker_.group->info().transport, pinned ? " through pinned memory" : "");
  }
  if (strategy_row_->needs == Needs::kParameterServer) {
    result_.backend = "native";
    result_.transport = worker_.client->status().payload;
    result_.payload = worker_.client->status().payload;
    result_.placement = options_.server_placement;
  }
  result_.parameters = static_cast<int64_t>(weights_.span().count);
  result_.global_batch = plan_.global_batch;
  result_.steps = plan_.steps;
  ddp_.Describe(result_.ddp);
  for (const Bucket& bucket : buckets_) result_.bucket_elements.push_back(bucket.count);
  const size_t made = made_.size();
  result_.final_loss = MeanLoss(made - std::min(made, std::max<size_t>(1, made / 10)));
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
  result_.weights_hash = HashBytes(weights.data, weights.bytes());
  return absl::OkStatus();
}

}  // namespace psring
