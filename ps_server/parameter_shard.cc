#include "ps_server/parameter_shard.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/gradient_norm.h"
#include "ps_server/consistency.h"
#include "ps_server/pieces.h"

namespace psring {

Accumulation AccumulationOf(const ServerJob& job) {
  const absl::StatusOr<WaitingRule> rule = ParseWaitingRule(job.consistency, job.workers);
  if (rule.ok() && rule->each_alone()) return Accumulation::kEachAlone;
  return job.deterministic ? Accumulation::kSumInOrder : Accumulation::kSum;
}

namespace {

// Some workers may be two updates ahead of one that still receives.
bool SendsCopies(const ServerJob& job) {
  const absl::StatusOr<WaitingRule> rule = ParseWaitingRule(job.consistency, job.workers);
  return rule.ok() && (rule->each_alone() || (rule->kind == WaitingRule::Kind::kBackup && rule->number > 0));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Create(const ServerJob& job, Device& device) {
  const size_t count = static_cast<size_t>(job.parameters);
  PSRING_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(job.optimizer, device, count));
  auto shard = std::unique_ptr<ParameterShard>(new ParameterShard(job, device, std::move(optimizer)));
  PSRING_ASSIGN_OR_RETURN(Buffer weights, device.Allocate(count * sizeof(float)));
  shard->weights_ = std::make_shared<Buffer>(std::move(weights));
  if (shard->accumulation_ == Accumulation::kSum) {
    PSRING_ASSIGN_OR_RETURN(shard->sum_, device.Allocate(count * sizeof(float)));
  }
  return shard;
}

ParameterShard::ParameterShard(const ServerJob& job, Device& device, Optimizer optimizer)
    : accumulation_(AccumulationOf(job)),
      wire_(job.wire),
      sends_copies_(SendsCopies(job)),
      schedule_(job.schedule),
      device_(device),
      optimizer_(std::move(optimizer)) {
  // A worker may push again while the last bytes of its previous reply are still being let go.
  const int buffers = sends_copies_ ? 2 * job.workers : job.workers;
  for (const Bucket& place : job.buckets) {
    BucketState& bucket = buckets_.emplace_back();
    bucket.place = place;
    const size_t bytes = place.count * sizeof(float);
    if (accumulation_ == Accumulation::kSum) {
      bucket.chunks = std::make_unique<Chunk[]>(bytes / kChunkBytes + 1);
    } else {
      bucket.staged.resize(job.workers);
      bucket.borrowed.resize(job.workers);
    }
    bucket.pool = std::make_shared<StagingPool>(device, bytes, buffers);
  }
}

Span ParameterShard::WeightsOf(const BucketState& bucket) const {
  return weights_->span().Slice(bucket.place.first, bucket.place.count);
}

void ParameterShard::SetWeights(int bucket, size_t offset, Pieces payload) {
  const Span weights = WeightsOf(buckets_[bucket]);
  PSRING_CHECK(offset + TotalBytes(payload) <= weights.bytes());
  CopyPieces(payload, static_cast<std::byte*>(weights.data) + offset);
}

void ParameterShard::SetSlot(int slot, int bucket, size_t offset, Pieces payload) {
  const Bucket& place = buckets_[bucket].place;
  const Span values = optimizer_.slots()[static_cast<size_t>(slot)].Slice(place.first, place.count);
  PSRING_CHECK(offset + TotalBytes(payload) <= values.bytes());
  CopyPieces(payload, static_cast<std::byte*>(values.data) + offset);
}

absl::Status ParameterShard::BeginPush(int worker, int bucket, bool in_place) {
  if (accumulation_ == Accumulation::kSum) return absl::OkStatus();
  if (accumulation_ == Accumulation::kEachAlone && in_place && wire_ == DType::kFloat32)
    return absl::OkStatus();
  BucketState& state = buckets_[bucket];
  PSRING_ASSIGN_OR_RETURN(state.staged[worker], state.pool->Take());
  return absl::OkStatus();
}

bool ParameterShard::AddChunk(int worker, int bucket, size_t offset, Pieces payload, uint64_t resets) {
  BucketState& state = buckets_[bucket];
  PSRING_CHECK(offset % kChunkBytes == 0 && offset + TotalBytes(payload) <= gradient_bytes(bucket));
  const size_t first = offset / SizeOf(wire_);
  if (accumulation_ != Accumulation::kSum) {
    SetPieces(wire_, payload, static_cast<float*>(state.staged[worker]->data()) + first);
    return true;
  }
  float* sum = sum_.span().floats() + state.place.first + first;
  Chunk& chunk = state.chunks[offset / kChunkBytes];
  MutexLock lock(chunk.mutex);
  if (state.resets != resets) return false;
  if (chunk.started) {
    AddPieces(wire_, payload, sum);
  } else {
    SetPieces(wire_, payload, sum);
    chunk.started = true;
  }
  return true;
}

uint64_t ParameterShard::Reset(int bucket) {
  BucketState& state = buckets_[bucket];
  // First, so that whoever comes to a chunk that is emptied already knows that it must not add to it.
  const uint64_t resets = ++state.resets;
  if (accumulation_ == Accumulation::kSum) EmptySum(bucket);
  return resets;
}

void ParameterShard::EmptySum(int bucket) {
  for (size_t i = 0; i <= bucket_bytes(bucket) / kChunkBytes; ++i) {
    MutexLock lock(buckets_[bucket].chunks[i].mutex);
    buckets_[bucket].chunks[i].started = false;
  }
}

void ParameterShard::DropPush(int worker, int bucket) {
  if (accumulation_ == Accumulation::kSum) return;
  buckets_[bucket].staged[worker].reset();
  buckets_[bucket].borrowed[worker] = {};
}

size_t ParameterShard::value_count() const {
  return weights_->span().count * (1 + optimizer_.slots().size());
}

void ParameterShard::SaveBucket(int bucket, float* values) const {
  const Bucket& place = buckets_[bucket].place;
  const size_t count = weights_->span().count;
  std::vector<Span> parts = optimizer_.slots();
  parts.insert(parts.begin(), weights_->span());
  for (size_t i = 0; i < parts.size(); ++i) {
    const float* part = parts[i].floats() + place.first;
    std::copy(part, part + place.count, values + i * count + place.first);
  }
}

void ParameterShard::LoadBucket(int bucket, const float* values) {
  const Bucket& place = buckets_[bucket].place;
  const size_t count = weights_->span().count;
  std::vector<Span> parts = optimizer_.slots();
  parts.insert(parts.begin(), weights_->span());
  for (size_t i = 0; i < parts.size(); ++i) {
    const float* from = values + i * count + place.first;
    std::copy(from, from + place.count, parts[i].floats() + place.first);
  }
}

bool ParameterShard::AddWhole(int worker, int bucket, Bytes gradient, uint64_t resets) {
  if (accumulation_ == Accumulation::kEachAlone && wire_ == DType::kFloat32) {
    buckets_[bucket].borrowed[worker] = gradient;
    return true;
  }
  size_t offset = 0;
  do {
    const Bytes chunk = gradient.subspan(offset, ChunkLength(gradient.size(), offset));
    if (!AddChunk(worker, bucket, offset, {&chunk, 1}, resets)) return false;
    offset += chunk.size();
  } while (offset < gradient.size());
  return true;
}

ConstSpan ParameterShard::SumOf(BucketState& state, std::span<const int> workers, Lane& lane) {
  const size_t count = state.place.count;
  if (accumulation_ == Accumulation::kSum) return sum_.span().Slice(state.place.first, count);
  if (accumulation_ == Accumulation::kEachAlone && state.staged[workers.front()] == nullptr) {
    return {state.borrowed[workers.front()].data(), count};
  }
  const Span sum = state.staged[workers.front()]->span().Slice(0, count);
  if (state.reduced) return sum;
  for (const int worker : workers.subspan(1)) {
    lane.ops->Add(sum, state.staged[worker]->span().Slice(0, count), *lane.stream);
  }
  return sum;
}

absl::StatusOr<double> ParameterShard::Reduce(int bucket, std::span<const int> workers, Lane& lane) {
  BucketState& state = buckets_[bucket];
  const ConstSpan sum = SumOf(state, workers, lane);
  state.reduced = true;
  PSRING_RETURN_IF_ERROR(lane.stream->Synchronize());
  return SumOfSquares(sum.floats(), sum.count);
}

absl::Status ParameterShard::Apply(int bucket, std::span<const int> workers, int64_t samples, int64_t version,
                                   const Factors& factors, Lane& lane) {
  BucketState& state = buckets_[bucket];
  const ConstSpan gradient = SumOf(state, workers, lane);
  state.reduced = false;
  if (accumulation_ == Accumulation::kSum) {
    EmptySum(bucket);
  }
  // A short last batch may leave a worker without samples: its push then says nothing about the weights.
  if (samples > 0) {
    const double learning_rate = LearningRate(schedule_, state.samples_applied) * factors.rate;
    optimizer_.Apply(state.place.first, WeightsOf(state), gradient, samples, learning_rate, version,
                     *lane.ops, *lane.stream, factors.gradient);
    state.samples_applied += samples;
  }
  PSRING_RETURN_IF_ERROR(lane.stream->Synchronize());
  // The stream has read the pushes by now: their buffers may go back.
  if (accumulation_ != Accumulation::kSum) {
    for (const int worker : workers) state.staged[worker].reset();
  }
  return absl::OkStatus();
}

absl::StatusOr<Snapshot> ParameterShard::Read(int bucket, Lane& lane) const {
  const BucketState& state = buckets_[bucket];
  const Span weights = WeightsOf(state);
  if (!sends_copies_) return Snapshot{weights, weights_};
  PSRING_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> copy, state.pool->Take());
  lane.stream->Copy(copy->data(), weights.data, weights.bytes());
  PSRING_RETURN_IF_ERROR(lane.stream->Synchronize());
  const Span copied = copy->span().Slice(0, weights.count);
  return Snapshot{copied, std::move(copy)};
}

void ParameterShard::CopyWeightsTo(int bucket, std::byte* to) const {
  const Span weights = WeightsOf(buckets_[bucket]);
  if (weights.bytes() > 0) std::memcpy(to, weights.data, weights.bytes());
}

absl::StatusOr<Snapshot> ParameterShard::CopyOf(ConstSpan values) const {
  PSRING_ASSIGN_OR_RETURN(Buffer buffer, device_.Allocate(values.bytes()));
  if (values.bytes() > 0) std::memcpy(buffer.data(), values.data, values.bytes());
  auto copy = std::make_shared<Buffer>(std::move(buffer));
  return Snapshot{{copy->data(), values.count}, copy};
}

absl::StatusOr<Snapshot> ParameterShard::CopyWeights(int bucket) const {
  return CopyOf(WeightsOf(buckets_[bucket]));
}

absl::StatusOr<Snapshot> ParameterShard::CopySlot(int slot, int bucket) const {
  const Bucket& place = buckets_[bucket].place;
  return CopyOf(optimizer_.slots()[static_cast<size_t>(slot)].Slice(place.first, place.count));
}

}  // namespace psring
