// What a rank does that has only some stages of the model (--pp), or a share of its matrices (--tp).
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/translate.h"
#include "trainer/models/replayed_model.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/step/training.h"

namespace psring {

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
    place.chunks = program_->chunks;
    PSRING_ASSIGN_OR_RETURN(cuts, Cuts(row, place));
  }
  TensorPlace tensors;
  if (pipeline.tensors != nullptr) {
    axis_.emplace(*pipeline.tensors, worker_.device);
    tensors = {.rank = axis_->rank(), .ranks = axis_->ranks(), .axis = &*axis_};
  }
  const auto make = [&](const TensorPlace& at) { return MakeModel(row, at); };
  PSRING_ASSIGN_OR_RETURN(part_, CutModel(make, cuts, place, tensors));
  model_ = std::move(part_->model);
  if (part_->tied.empty() || !strategy_row_.asynchronous() || worker_.world_size == 1)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      Tr("--pp does not support --strategy $0 for $1: its first and last stages share a tensor, and their "
         "servers would add the replicas' gradients to it in different orders; use ps-sync",
         strategy_row_.name, options_.model));
}

// On all ranks of the job: what the first one has.
template <typename T>
absl::Status Training::FromFirstRank(T* values, size_t count) {
  if (same_stages_ != nullptr) PSRING_RETURN_IF_ERROR(same_stages_->Broadcast(0, values, count));
  return replica_->Broadcast(0, values, count);
}

// Those of the user, or balanced by the times that the first rank measures.
// With --cp of whole
// sequences, whose layers have the same shares of the time.
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
  PSRING_RETURN_IF_ERROR(FromFirstRank(cuts.data(), cuts.size()));
  return cuts;
}

absl::Status Training::MakePipeline(int max_batch) {
  std::map<int, std::pair<Channel*, Channel*>> channels;
  for (const Pipeline::Boundary& at : worker_.pipeline->boundaries) {
    channels[at.boundary] = {at.activations, at.gradients};
  }
  const Keep keep = program_->row.divides_backward ? Keep::kForWeights : KeepOf(options_);
  PSRING_ASSIGN_OR_RETURN(pipeline_,
                          PipelineExecutor::Create({.device = worker_.device,
                                                    .compute = *compute_,
                                                    .ops = *ops_,
                                                    .model = *model_,
                                                    .part = *part_,
                                                    .program = *program_,
                                                    .samples = train().spec(),
                                                    .micro_batches = options_.micro_batches,
                                                    .max_batch = max_batch,
                                                    .keep = keep,
                                                    .seed = options_.seed,
                                                    .strategy = strategy_,
                                                    .buckets = buckets_,
                                                    .weights = weights_.span(),
                                                    .gradient = gradient_.device,
                                                    .buffers = buffers_.span(),
                                                    .channels = std::move(channels),
                                                    .tied = worker_.pipeline->tied,
                                                    .one_copy_stream = options_.copy_streams == 1}));
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
    // With sharded state, an all-gather after the norm makes it part of the exposed communication.
    if (has_stages() && strategy_.sharded == nullptr) waits_.push_back({begin_ns, worker_.trace.Now()});
    double sum = 0;
    for (const double of_position : all) sum += of_position;
    return sum;
  };
  return rule;
}

// After the strategy's FinishStep: this rank's messages, then the loss, for which all wait.
absl::Status Training::FinishStages() {
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const int64_t begin_ns = worker_.trace.Now();
  PSRING_RETURN_IF_ERROR(pipeline_->Finish());
  PSRING_RETURN_IF_ERROR(pipeline_->ShareTransferTimes(*replica_));
  PSRING_ASSIGN_OR_RETURN(score_, ScoreOfLastStage());
  waits_.push_back({begin_ns, worker_.trace.Now()});
  return absl::OkStatus();
}

absl::StatusOr<BatchScore> Training::ScoreOfLastStage() {
  BatchScore score = pipeline_->score();
  PSRING_RETURN_IF_ERROR(replica_->Broadcast(worker_.pipeline->replica->size() - 1, &score, 1));
  return OfAllSegments(score);
}

absl::StatusOr<BatchScore> Training::EvaluateStages(Span weights,
                                                    const std::function<void(int64_t)>& on_batches) {
  const Dataset& part = test();
  PSRING_RETURN_IF_ERROR(
      pipeline_->Evaluate(part, evaluation_batch_, weights, buffers_.span(),
                          [&](int64_t samples) { on_batches(samples * part.spec().labels); }));
  return ScoreOfLastStage();
}

// Of the whole model, with no work in progress; a replica's ranks call it together. Valid until the next
// call.
absl::StatusOr<ConstSpan> Training::WholeWeights() {
  PSRING_ASSIGN_OR_RETURN(const ConstSpan own, WeightsOnHost());
  if (!part_.has_value()) return own;
  PSRING_ASSIGN_OR_RETURN(whole_weights_,
                          replica_->Whole(*part_, &PositionPart::of_parameters, own.floats()));
  return ConstSpan(whole_weights_.data(), whole_weights_.size());
}

// Of a decoded checkpoint.
void Training::TakeOwnPart(TrainingCheckpoint& checkpoint) const {
  const PositionPart& own = part_->parts[part_->rank];
  const auto take = [](const LayoutPart& ranges, size_t count, std::vector<float>& values) {
    if (values.empty()) return;
    std::vector<float> part(count);
    TakePart(ranges, values.data(), part.data());
    values = std::move(part);
  };
  take(own.of_parameters, own.parameters, checkpoint.weights);
  for (std::vector<float>& slot : checkpoint.slots) take(own.of_parameters, own.parameters, slot);
  take(own.of_buffers, own.buffers, checkpoint.buffers);
}

// By all ranks of the job, after the same step: the first one writes the state of the first replica, under
// the names of the whole model.
absl::Status Training::SaveStages(const Moment& moment) {
  if (worker_.rank > 0) {
    return strategy_.sharded != nullptr ? strategy_.sharded->SendState() : absl::OkStatus();
  }
  bool is_of_step = false;
  PSRING_ASSIGN_OR_RETURN(TrainingCheckpoint checkpoint, ReadState(is_of_step));
  const auto gather = [this](LayoutPart PositionPart::*member, std::vector<float>& values) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(values, replica_->Whole(*part_, member, values.data()));
    return absl::OkStatus();
  };
  PSRING_RETURN_IF_ERROR(gather(&PositionPart::of_parameters, checkpoint.weights));
  for (std::vector<float>& slot : checkpoint.slots) {
    PSRING_RETURN_IF_ERROR(gather(&PositionPart::of_parameters, slot));
  }
  PSRING_RETURN_IF_ERROR(gather(&PositionPart::of_buffers, checkpoint.buffers));
  if (!is_first_rank()) return absl::OkStatus();
  checkpoint.position = PositionAt(moment.step, moment.step);
  ++sequence_;
  return worker_.save(moment.step,
                      [&](CheckpointSink& sink) { return WriteCheckpoint(checkpoint, part_->whole, sink); });
}

// By all ranks of the job, after the same step: what the first one gives for `stops`.
absl::StatusOr<bool> Training::FirstRankStops(bool stops) {
  uint32_t value = stops ? 1 : 0;
  PSRING_RETURN_IF_ERROR(FromFirstRank(&value, 1));
  return value != 0;
}

}  // namespace psring
