// What a rank does that has only its shards of the gradient (zero2), or also of the weights (fsdp).
#include <algorithm>
#include <utility>

#include "common/io/hash.h"
#include "common/text/translate.h"
#include "trainer/pipeline/layout_memory.h"
#include "trainer/step/training.h"

namespace psring {

void Training::PlanShards() {
  if (!strategy_row_.shards_gradients || worker_.world_size == 1) return;
  UnitShards planned = PlanUnitShards(*model_, strategy_row_, options_, worker_.rank, worker_.world_size);
  buckets_ = std::move(planned.buckets);
  sharded_ = std::move(planned.sharded);
  shards_ = std::move(planned.plan);
  const int reductions = options_.micro_batches;
  if (reductions == 1 || !is_first_rank()) return;
  worker_.on_note(Tr(
      "--micro_batches $0 with --strategy $1: each step has $0 reduce-scatters of the gradient, which is "
      "not kept whole, and sends $2 times the bytes of ring",
      reductions, strategy_row_.name, strategy_row_.SentPart(1, reductions, options_.reshard == "forward")));
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
absl::StatusOr<std::string> Training::HashOfWeights() {
  Hasher hasher;
  if (shards_weights()) {
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
  std::vector<float> all(whole().count());
  if (shards_weights()) {
    PSRING_RETURN_IF_ERROR(strategy_.units->ReadWeights([&](const Bucket& bucket, const float* values) {
      std::copy_n(values, bucket.count, all.data() + bucket.first);
    }));
  } else {
    PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WholeWeights());
    std::copy_n(weights.floats(), weights.count, all.data());
  }
  return all;
}

// On the test data. `weights`: those of a snapshot, of which a rank with sharded weights has its parts.
absl::StatusOr<BatchScore> Training::Score(Span weights, const std::function<void(int64_t)>& on_batches) {
  if (pipeline_ != nullptr) return EvaluateStages(weights, on_batches);
  const Dataset& test = worker_.data.test;
  if (shards_weights()) {
    return executor_->Evaluate(test, evaluation_batch_, /*computes=*/worker_.rank == 0, on_batches);
  }
  return Evaluate(*model_, weights, buffers_->view().device, test, evaluation_batch_, activations_, *batches_,
                  *compute_, rows_->evaluated(), on_batches);
}

}  // namespace psring
