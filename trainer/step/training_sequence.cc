// What a rank does that has some positions of each sample (--cp).
#include "trainer/step/training.h"

namespace psring {

// Before the model is made.
absl::Status Training::TakeSegment(const ModelRow& row) {
  if (worker_.sequence == nullptr) return absl::OkStatus();
  ProcessGroup& group = *worker_.sequence->group;
  sequence_axis_.emplace(*worker_.sequence);
  segment_ = {.rank = group.rank(),
              .ranks = group.size(),
              .kind = options_.context_parallel == "contiguous" ? ContextParallel::kContiguous
                      : options_.context_parallel == "ulysses"  ? ContextParallel::kUlysses
                                                                : ContextParallel::kRing,
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

absl::Status Training::ReserveExchange(const ModelRow& row, int max_batch) {
  if (!sequence_axis_.has_value()) return absl::OkStatus();
  const size_t elements = segment_.ExchangeElements(row.size.context, row.size.width / options_.tp);
  return sequence_axis_->Reserve(static_cast<size_t>(max_batch) * elements, worker_.device);
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

}  // namespace psring
