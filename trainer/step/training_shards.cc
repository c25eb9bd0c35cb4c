// What a rank does that has only its shards of the gradient (zero2), or also of the weights (fsdp).
#include <algorithm>
#include <utility>

#include "common/io/hash.h"
#include "common/text/translate.h"
#include "trainer/pipeline/step_units.h"
#include "trainer/step/training.h"

namespace psring {

// One bucket per unit. The gradients of the units in flight need one block if memory is what counts, and two
// to compute the next unit while one is reduced.
void Training::PlanShards() {
  if (!strategy_row_.shards_gradients || worker_.world_size == 1) return;
  buckets_ = UnitBuckets(*model_, options_.recompute);
  const StepUnits units = PlanUnits(model_->CompleteAfterLayers(), buckets_);
  const std::vector<bool> beside =
      UsedBesideOthers(units, BucketsOfLayers(model_->LayerParameters(), buckets_), buckets_.size());
  sharded_ = ShardBuckets(buckets_, shard_group()->rank(), shard_ranks());
  shards_.gradient = PlanBlocks(sharded_, beside, /*turns=*/strategy_row_.shards_weights ? 1 : 2);
  const bool reshards = options_.reshard == "forward";
  if (strategy_row_.shards_weights) {
    const std::vector<bool> all(buckets_.size(), true);
    shards_.weights = PlanBlocks(sharded_, reshards ? beside : all, /*turns=*/2);
  }
  const int reductions = options_.micro_batches;
  if (reductions == 1 || !is_first_rank()) return;
  worker_.on_note(
      Tr("--micro_batches $0 with --strategy $1: each step has $0 reduce-scatters of the gradient, which is "
         "not kept whole, and sends $2 times the bytes of ring",
         reductions, strategy_row_.name,
         strategy_row_.SentPart(1, reductions, reshards,
                                strategy_row_.SplitOf(worker_.world_size, options_.dp_shard))));
}

// All of the model's, or this rank's parts.
HostView Training::OwnWeights() const {
  const HostView all = memory_->weights();
  return shards_weights() ? all.Slice(0, shards_.weights.parts) : all;
}

// Likewise. Parts are cut from the layers as these are drawn.
std::vector<float> Training::InitialWeights() const {
  if (!shards_weights()) return model_->InitialWeights(options_.seed);
  std::vector<float> own(shards_.weights.parts);
  model_->DrawWeights(options_.seed, [&](const ReadyRange& drawn, const float* values) {
    for (const ShardedBucket& bucket : sharded_) {
      for (const ShardPart& part : bucket.parts) {
        const size_t from = std::max(part.range.first, drawn.first);
        const size_t to = std::min(part.range.first + part.range.count, drawn.first + drawn.count);
        if (from < to) {
          std::copy_n(values + (from - drawn.first), to - from,
                      own.data() + part.at + (from - part.range.first));
        }
      }
    }
  });
  return own;
}

// Of the whole model's weights; with sharded weights or a part of the model by all ranks together, as below.
// Of a model that is not divided, no rank has more than one unit.
absl::StatusOr<std::string> Training::HashOfWeights() {
  Hasher hasher;
  if (shards_weights() && !part_.has_value()) {
    PSRING_RETURN_IF_ERROR(strategy_.units->ReadWeights([&](const Bucket& bucket, const float* values) {
      hasher.Add(values, bucket.count * sizeof(float));
    }));
  } else {
    PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WholeWeights());
    hasher.Add(weights.data, weights.bytes());
  }
  return hasher.Hex();
}

absl::StatusOr<std::vector<float>> Training::FinalWeights() {
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WholeWeights());
  return std::vector<float>(weights.floats(), weights.floats() + weights.count);
}

// On the test data. `weights`: those of a snapshot, of which a rank with sharded weights has its parts.
absl::StatusOr<BatchScore> Training::Score(Span weights, const std::function<void(int64_t)>& on_batches) {
  if (pipeline_ != nullptr) return EvaluateStages(weights, on_batches);
  BatchScore score;
  if (shards_weights()) {
    PSRING_ASSIGN_OR_RETURN(score, executor_->Evaluate(test(), evaluation_batch_,
                                                       /*computes=*/is_of_first_replica(), on_batches));
  } else {
    PSRING_ASSIGN_OR_RETURN(
        score, Evaluate(*model_, weights, buffers_->view().device, test(), evaluation_batch_, activations_,
                        *batches_, *compute_, rows_->evaluated(), on_batches));
  }
  return OfAllSegments(score);
}

}  // namespace psring
