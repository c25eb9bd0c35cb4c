// What a rank does that has only its shards of the gradient (zero2), or also of the weights (fsdp).
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/io/hash.h"
#include "common/text/translate.h"
#include "trainer/memory/layout_memory.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

// `part`: what a replica sends in a step, relative to ring.
std::string ReductionsNote(const std::string& strategy, int micro_batches, double part, size_t parameters,
                           int replicas) {
  // An all-reduce sends what a rank does not keep twice.
  const double ring_mb = 2e-6 * sizeof(float) * static_cast<double>(parameters) * (replicas - 1) / replicas;
  const auto text = [](double mb) { return absl::StrFormat("%.*f", mb < 10 ? 2 : 0, mb); };
  return Tr(
      "$0 with $1 micro-batches reduces each gradient $1 times: a replica sends up to $2 MB a step "
      "instead of ring's $3 MB",
      strategy, micro_batches, text(part * ring_mb), text(ring_mb));
}

}  // namespace

void Training::PlanShards() {
  if (!strategy_row_.shards_gradients || worker_.world_size == 1) return;
  UnitShards planned = PlanUnitShards(
      *model_, strategy_row_, options_, {.rank = shard_group()->rank(), .ranks = shard_ranks()},
      part_.has_stages() ? part_.model_part() : nullptr, part_.program().row.divides_backward);
  buckets_ = std::move(planned.buckets);
  sharded_ = std::move(planned.sharded);
  shards_ = std::move(planned.plan);
  if (options_.micro_batches == 1 || !part_.is_first_rank()) return;
  const ShardSplit split = strategy_row_.SplitOf(worker_.world_size, options_.dp_shard);
  const double part = strategy_row_.SentPart(1, options_.micro_batches, options_.reshard == "forward", split);
  worker_.on_note(ReductionsNote(strategy_row_.name, options_.micro_batches, part, whole().parameters(),
                                 worker_.world_size));
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
  if (part_.model_part() == nullptr) return own;
  PSRING_ASSIGN_OR_RETURN(whole_weights_, part_.replica()->Whole(*part_.model_part(),
                                                                 &PositionPart::of_parameters, own.floats()));
  return ConstSpan(whole_weights_.data(), whole_weights_.size());
}

// Of the whole model's weights; with sharded weights or a part of the model by all ranks together, as below.
// Of a model that is not divided, no rank has more than one unit.
absl::StatusOr<std::string> Training::HashOfWeights() {
  Hasher hasher;
  if (shards_weights() && part_.model_part() == nullptr) {
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
  PSRING_RETURN_IF_ERROR(executor_->Evaluate(part_.test(), evaluation_batch_, weights, rows_->evaluated(),
                                             /*computes=*/part_.is_of_first_replica(), on_batches));
  return part_.Score(executor_->score());
}

}  // namespace psring
