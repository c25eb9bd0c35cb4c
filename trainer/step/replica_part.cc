#include "trainer/step/replica_part.h"

#include <utility>

#include "common/base/check.h"
#include "trainer/models/model_stages.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {

ReplicaPart::ReplicaPart(const TrainingOptions& options, Worker& worker)
    : options_(options), worker_(worker), program_(*FindStepProgram("single_stage")) {}

absl::Status ReplicaPart::TakeSegment(const ModelRow& row) {
  if (worker_.sequence == nullptr) return absl::OkStatus();
  ProcessGroup& group = *worker_.sequence->group;
  sequence_axis_.emplace(*worker_.sequence);
  segment_ = {.rank = group.rank(),
              .ranks = group.size(),
              .kind = ContextParallelOf(options_.context_parallel).kind,
              .axis = &*sequence_axis_};
  PSRING_ASSIGN_OR_RETURN(segments_, ReplicaExchange::Create(group, worker_.device));
  const std::vector<ReadyRange> positions = segment_.Positions(row.size.context);
  segment_data_ = DataSplits{.name = worker_.data.name,
                             .train = worker_.data.train.Positions(positions),
                             .test = worker_.data.test.Positions(positions)};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> ReplicaPart::MakeModel(const ModelRow& row, Ops& ops,
                                                              const TensorPlace& share) const {
  if (share.ranks == 1 && !segment_.divides()) return row.make(worker_.data.train.spec(), ops);
  PSRING_ASSIGN_OR_RETURN(const ModelRow::Make part, MakerOfPart(row, options_.dropout, share, segment_));
  return part(train().spec(), ops);
}

absl::Status ReplicaPart::TakeModelPart(const ModelRow& row, Ops& ops, Stream& compute,
                                        std::unique_ptr<Model>& model) {
  if (worker_.pipeline == nullptr) return absl::OkStatus();
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
    PSRING_ASSIGN_OR_RETURN(cuts, Cuts(row, ops, compute, *model, place));
  }
  TensorPlace tensors;
  if (pipeline.tensors != nullptr) {
    axis_.emplace(*pipeline.tensors, worker_.device);
    tensors = {.rank = axis_->rank(),
               .ranks = axis_->ranks(),
               .axis = &*axis_,
               .divides_rows = options_.sequence_parallel};
  }
  const auto make = [&](const TensorPlace& share) { return MakeModel(row, ops, share); };
  PSRING_ASSIGN_OR_RETURN(model_, CutModel(make, cuts, place, tensors));
  model = std::move(model_->model);
  if (has_stages()) {
    messages_ = std::make_unique<StageMessages>(pipeline, *model_, options_.micro_batches,
                                                options_.warmup_steps, worker_.device);
  }
  return absl::OkStatus();
}

// Of forward and backward, by layer. With --cp a whole sequence may not fit into the memory of one rank. So
// this measures one that is as long as a rank's part, and multiplies the times of attention by how much
// longer it takes with the keys of all ranks.
absl::StatusOr<std::vector<double>> ReplicaPart::LayerTimes(const ModelRow& row, Ops& ops, Stream& compute,
                                                            const Model& model) {
  ModelRow own = row;
  if (segment_.divides()) {
    own.size.context = segment_.OwnPositions(row.size.context);
    PSRING_ASSIGN_OR_RETURN(own.make, MakerOfPart(own, options_.dropout, TensorPlace(), SequencePlace()));
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> whole, own.make(train().spec(), ops));
  PSRING_ASSIGN_OR_RETURN(std::vector<double> times, MeasureLayers(*whole, train(), options_.batch,
                                                                   options_.seed, worker_.device, compute));
  const std::vector<bool> exchanging = model.ExchangingLayers();
  PSRING_CHECK(times.size() == exchanging.size());
  for (size_t l = 0; l < times.size(); ++l) times[l] *= exchanging[l] ? segment_.AttentionOfOwn() : 1;
  return times;
}

// Those of the user, or balanced by the times that the first rank measures.
absl::StatusOr<std::vector<size_t>> ReplicaPart::Cuts(const ModelRow& row, Ops& ops, Stream& compute,
                                                      const Model& model, const PipelinePlace& place) {
  std::vector<size_t> cuts = worker_.pipeline->cuts;
  if (!cuts.empty()) return cuts;
  if (is_first_rank()) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<double> costs, LayerTimes(row, ops, compute, model));
    PSRING_ASSIGN_OR_RETURN(cuts, BalancedCuts(model, costs, place.stages()));
  }
  cuts.resize(static_cast<size_t>(place.stages()) - 1);
  if (same_stages_ != nullptr) {
    PSRING_RETURN_IF_ERROR(same_stages_->Broadcast(0, cuts.data(), cuts.size()));
  }
  PSRING_RETURN_IF_ERROR(replica_->Broadcast(0, cuts.data(), cuts.size()));
  return cuts;
}

absl::Status ReplicaPart::Reserve(const Model& model, int max_batch) {
  if (axis_.has_value()) PSRING_RETURN_IF_ERROR(axis_->Reserve(model.PieceBytes(max_batch)));
  if (!sequence_axis_.has_value()) return absl::OkStatus();
  return sequence_axis_->Reserve(model.ExchangeBytes(max_batch), worker_.device);
}

void ReplicaPart::Close() {
  messages_.reset();
  axis_.reset();
  sequence_axis_.reset();
}

absl::StatusOr<double> ReplicaPart::Sum(double own) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<double> all, replica_->Gather(own));
  double sum = 0;
  for (const double of_position : all) sum += of_position;
  return sum;
}

absl::StatusOr<BatchScore> ReplicaPart::Score(BatchScore own) {
  if (has_stages()) {
    PSRING_RETURN_IF_ERROR(replica_->Broadcast(worker_.pipeline->replica->size() - 1, &own, 1));
  }
  if (segments_ == nullptr) return own;
  PSRING_ASSIGN_OR_RETURN(const std::vector<BatchScore> all, segments_->Gather(own));
  BatchScore sum;
  for (const BatchScore& score : all) {
    sum.loss_sum += score.loss_sum;
    sum.correct += score.correct;
  }
  return sum;
}

ReplicaPart::Traffics ReplicaPart::traffic() const {
  Traffics sent;
  if (worker_.statistics != nullptr) sent.all = worker_.statistics->traffic();
  if (messages_ != nullptr) sent.all = sent.all + messages_->traffic();
  if (worker_.sequence != nullptr) sent.sequences = worker_.sequence->traffic();
  sent.all = sent.all + sent.sequences;
  if (worker_.pipeline == nullptr) return sent;
  const Pipeline& at = *worker_.pipeline;
  if (at.tensors != nullptr) sent.tensors = at.tensors->traffic();
  if (at.tensors != at.replica) sent.all = sent.all + sent.tensors;
  sent.all = sent.all + at.replica->traffic();
  return sent;
}

TensorAxis::Times ReplicaPart::TakeTimes() {
  TensorAxis::Times times = axis_.has_value() ? axis_->Take() : TensorAxis::Times();
  if (sequence_axis_.has_value()) times.Add(sequence_axis_->Take());
  return times;
}

size_t ReplicaPart::reserved_bytes() const {
  return (axis_.has_value() ? axis_->reserved_bytes() : 0) +
         (sequence_axis_.has_value() ? sequence_axis_->reserved_bytes() : 0);
}

}  // namespace psring
