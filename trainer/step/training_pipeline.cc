// What a rank does that has only some stages of the model (--pp), a share of its matrices (--tp), or some
// positions of each sample (--cp).
#include <algorithm>
#include <utility>

#include "trainer/models/replayed_model.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/step/training.h"

namespace psring {

// With --cp, before the model is made.
absl::Status Training::TakeSegment(const ModelRow& row) {
  if (worker_.sequence == nullptr) return absl::OkStatus();
  ProcessGroup& group = *worker_.sequence->group;
  sequence_axis_.emplace(*worker_.sequence);
  segment_ = {.rank = group.rank(),
              .ranks = group.size(),
              .kind = ParseContextParallel(options_.context_parallel),
              .axis = &*sequence_axis_};
  PSRING_ASSIGN_OR_RETURN(segments_, ReplicaExchange::Create(group, worker_.device));
  const std::vector<ReadyRange> positions = segment_.Positions(row.size.context);
  segment_data_ = DataSplits{.name = worker_.data.name,
                             .train = worker_.data.train.Positions(positions),
                             .test = worker_.data.test.Positions(positions)};
  return absl::OkStatus();
}

// Of the model, or of this rank's share of its matrices.
absl::StatusOr<std::unique_ptr<Model>> Training::MakeModel(const ModelRow& row, const TensorPlace& at) {
  if (at.ranks == 1 && !segment_.divides()) return row.make(worker_.data.train.spec(), *ops_);
  PSRING_ASSIGN_OR_RETURN(const ModelRow::Make part, MakerOfPart(row, options_.dropout, at, segment_));
  return part(train().spec(), *ops_);
}

// With no work in progress, by all ranks of a sequence.
absl::StatusOr<BatchScore> Training::OfAllSegments(const BatchScore& own) {
  if (segments_ == nullptr) return own;
  PSRING_ASSIGN_OR_RETURN(const std::vector<BatchScore> all, segments_->Gather(own));
  BatchScore sum;
  for (const BatchScore& score : all) {
    sum.loss_sum += score.loss_sum;
    sum.correct += score.correct;
  }
  return sum;
}

// Replaces the model by this rank's part of it.
absl::Status Training::TakeModelPart(const ModelRow& row) {
  const Pipeline& pipeline = *worker_.pipeline;
  PSRING_ASSIGN_OR_RETURN(replica_, ReplicaExchange::Create(*pipeline.replica, worker_.device));
  if (has_first_part() && worker_.group != nullptr) {
    PSRING_ASSIGN_OR_RETURN(same_stages_, ReplicaExchange::Create(*worker_.group, worker_.device));
  }
  PipelinePlace place{.position = pipeline.position, .positions = pipeline.size};
  std::vector<size_t> cuts;
  if (options_.pp > 1) {
    PSRING_ASSIGN_OR_RETURN(program_, FindPipelineProgram(pipeline.program));
    place.chunks = program_.chunks;
    PSRING_ASSIGN_OR_RETURN(cuts, Cuts(row, place));
  }
  TensorPlace tensors;
  if (pipeline.tensors != nullptr) {
    axis_.emplace(*pipeline.tensors, worker_.device);
    tensors = {.rank = axis_->rank(),
               .ranks = axis_->ranks(),
               .axis = &*axis_,
               .divides_rows = options_.sequence_parallel};
  }
  const auto make = [&](const TensorPlace& at) { return MakeModel(row, at); };
  PSRING_ASSIGN_OR_RETURN(part_, CutModel(make, cuts, place, tensors));
  model_ = std::move(part_->model);
  return absl::OkStatus();
}

// Those of the user, or balanced by the times that the first rank measures; with --cp of fewer, but whole
// sequences.
absl::StatusOr<std::vector<size_t>> Training::Cuts(const ModelRow& row, const PipelinePlace& place) {
  std::vector<size_t> cuts = worker_.pipeline->cuts;
  if (!cuts.empty()) return cuts;
  if (is_first_rank()) {
    const Dataset& data = worker_.data.train;
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> whole, row.make(data.spec(), *ops_));
    PSRING_ASSIGN_OR_RETURN(const std::vector<double> costs,
                            MeasureLayers(*whole, data, std::max(1, options_.batch / segment_.ranks),
                                          options_.seed, worker_.device, *compute_));
    PSRING_ASSIGN_OR_RETURN(cuts, BalancedCuts(*model_, costs, place.stages()));
  }
  cuts.resize(static_cast<size_t>(place.stages()) - 1);
  if (same_stages_ != nullptr) {
    PSRING_RETURN_IF_ERROR(same_stages_->Broadcast(0, cuts.data(), cuts.size()));
  }
  PSRING_RETURN_IF_ERROR(replica_->Broadcast(0, cuts.data(), cuts.size()));
  return cuts;
}

absl::Status Training::MakeExecutor(int max_batch) {
  if (has_stages()) {
    messages_ =
        std::make_unique<StageMessages>(*worker_.pipeline, *part_, options_.micro_batches, worker_.device);
  }
  PSRING_ASSIGN_OR_RETURN(
      executor_,
      Executor::Create(options_, {.device = worker_.device,
                                  .compute = *compute_,
                                  .ops = *ops_,
                                  .model = *model_,
                                  .program = program_,
                                  .samples = train().spec(),
                                  .max_batch = max_batch,
                                  .delay = *delay_,
                                  .strategy = strategy_,
                                  .buckets = buckets_,
                                  .weights = memory_->weights().device,
                                  .gradient = memory_->gradient().device,
                                  .buffers = buffers_->view().device,
                                  .statistics = buffers_->statistics(),
                                  .rows = rows_->touched(),
                                  .part = has_stages() ? &*part_ : nullptr,
                                  .messages = messages_.get(),
                                  .shards = has_stages() && shards_.shards_gradient() ? &shards_ : nullptr}));
  return absl::OkStatus();
}

// The norm of a replica's gradient is that of all parts.
UpdateRule Training::RuleOfUpdates() {
  UpdateRule rule{
      .optimizer = updates_.optimizer, .schedule = updates_.schedule, .clip_norm = options_.clip_norm};
  if (!part_.has_value()) return rule;
  rule.counted_elsewhere = part_->counted_elsewhere;
  rule.sum_over_stages = [this](double own) -> absl::StatusOr<double> {
    const int64_t begin_ns = worker_.trace.Now();
    PSRING_ASSIGN_OR_RETURN(const std::vector<double> all, replica_->Gather(own));
    // If an all-gather follows the norm, it is part of the exposed communication.
    if (has_stages() && (strategy_.sharded == nullptr || shards_weights()))
      waits_.push_back({begin_ns, worker_.trace.Now()});
    double sum = 0;
    for (const double of_position : all) sum += of_position;
    return sum;
  };
  return rule;
}

// After the strategy's FinishStep: this rank's messages, then the loss, for which all wait. If servers count
// updates, those of the first stage count for the replica, so that all of its ranks end with the same step.
absl::Status Training::FinishStages(StepReport& report) {
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const int64_t begin_ns = worker_.trace.Now();
  PSRING_RETURN_IF_ERROR(executor_->FinishMessages(*replica_));
  PSRING_ASSIGN_OR_RETURN(score_, ScoreOfReplica());
  if (strategy_row_.asynchronous()) PSRING_RETURN_IF_ERROR(replica_->Broadcast(0, &report.version, 1));
  waits_.push_back({begin_ns, worker_.trace.Now()});
  return absl::OkStatus();
}

// The executor's, of all stages and segments.
absl::StatusOr<BatchScore> Training::ScoreOfReplica() {
  BatchScore score = executor_->score();
  if (has_stages()) {
    PSRING_RETURN_IF_ERROR(replica_->Broadcast(worker_.pipeline->replica->size() - 1, &score, 1));
  }
  return OfAllSegments(score);
}

// Of the whole model, with no work in progress; a replica's ranks, and with sharded weights all, call it
// together. Valid until the next call.
absl::StatusOr<ConstSpan> Training::WholeWeights() {
  if (shards_weights()) {
    whole_weights_.resize(model_->parameters().count());
    PSRING_RETURN_IF_ERROR(strategy_.units->ReadWeights([this](const Bucket& bucket, const float* values) {
      std::copy_n(values, bucket.count, whole_weights_.data() + bucket.first);
    }));
  }
  ConstSpan own(whole_weights_.data(), whole_weights_.size());
  if (!shards_weights()) {
    PSRING_ASSIGN_OR_RETURN(own, WeightsOnHost());
  }
  if (!part_.has_value()) return own;
  PSRING_ASSIGN_OR_RETURN(whole_weights_,
                          replica_->Whole(*part_, &PositionPart::of_parameters, own.floats()));
  return ConstSpan(whole_weights_.data(), whole_weights_.size());
}

}  // namespace psring
