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

bool IsBounded(const ServerJob& job) {
  const absl::StatusOr<WaitingRule> rule = ParseWaitingRule(job.consistency, job.workers);
  return rule.ok() && rule->kind == WaitingRule::Kind::kBoundedStaleness;
}

// Room for one push at least; serial: for a whole gradient.
size_t Window(const ServerJob& job, size_t wanted) {
  size_t most = 0, all = 0;
  for (const Bucket& bucket : job.buckets) {
    most = std::max(most, bucket.count * sizeof(float));
    all += bucket.count * sizeof(float);
  }
  return std::max(wanted, job.serial ? all : most);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Create(const ServerJob& job, Device& device,
                                                                       const ShardOptions& options) {
  const size_t count = static_cast<size_t>(job.parameters);
  PSRING_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(job.optimizer, device, count));
  auto shard =
      std::unique_ptr<ParameterShard>(new ParameterShard(job, device, std::move(optimizer), options));
  PSRING_ASSIGN_OR_RETURN(Buffer weights, device.Allocate(count * sizeof(float)));
  shard->weights_ = std::make_shared<Buffer>(std::move(weights));
  if (shard->accumulation_ == Accumulation::kSum) {
    PSRING_ASSIGN_OR_RETURN(shard->sum_, device.Allocate(count * sizeof(float)));
  }
  return shard;
}

ParameterShard::ParameterShard(const ServerJob& job, Device& device, Optimizer optimizer,
                               const ShardOptions& options)
    : accumulation_(AccumulationOf(job)),
      wire_(job.wire),
      sends_copies_(SendsCopies(job)),
      bounded_(IsBounded(job)),
      serial_(job.serial),
      finite_(options.reject_nonfinite ? Finite::kRequired : Finite::kAny),
      schedule_(job.schedule),
      device_(device),
      optimizer_(std::move(optimizer)),
      step_shares_(job.workers),
      staging_(std::make_shared<StagingPool>(device, Window(job, options.staging_bytes))) {
  for (const Bucket& place : job.buckets) {
    BucketState& bucket = buckets_.emplace_back();
    bucket.place = place;
    if (accumulation_ == Accumulation::kSum) {
      bucket.chunks = std::make_unique<Chunk[]>(place.count * sizeof(float) / kChunkBytes + 1);
    } else {
      bucket.staged.resize(job.workers);
      bucket.borrowed.resize(job.workers);
    }
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

StagingPool::Share ParameterShard::Reserve(int worker, int bucket, int64_t step) {
  if (!serial_) return staging_->Reserve(worker, bucket_bytes(bucket));
  StepShare& of_step = step_shares_[worker];
  if (of_step.step != step || of_step.share == nullptr) {
    of_step.share.reset();
    of_step = {.step = step, .share = staging_->Reserve(worker, weights_->bytes())};
  }
  return of_step.share;
}

absl::StatusOr<bool> ParameterShard::BeginPush(int worker, int bucket, int64_t step, bool in_place) {
  if (accumulation_ == Accumulation::kSum) return true;
  BucketState& state = buckets_[bucket];
  if (accumulation_ == Accumulation::kSumInOrder) {
    PSRING_ASSIGN_OR_RETURN(
        state.staged[worker].buffer,
        staging_->Take(staging_->ReserveAnyway(bucket_bytes(bucket)), bucket_bytes(bucket)));
    return true;
  }
  const bool borrows = in_place && wire_ == DType::kFloat32;
  if (borrows && !bounded_) return true;
  StagingPool::Share share = Reserve(worker, bucket, step);
  if (share == nullptr) return false;
  if (!borrows) {
    PSRING_ASSIGN_OR_RETURN(state.staged[worker].buffer, staging_->Take(share, bucket_bytes(bucket)));
  }
  state.staged[worker].share = std::move(share);
  return true;
}

bool ParameterShard::BeginRepeat(int worker, int bucket, bool in_place) {
  if (accumulation_ != Accumulation::kEachAlone || in_place) return true;
  const size_t bytes = bucket_bytes(bucket);
  // Serial: the step's share may be gone already, and its other answers wait for this one.
  StagingPool::Share share = serial_ ? staging_->ReserveAnyway(bytes) : staging_->Reserve(worker, bytes);
  if (share == nullptr) return false;
  buckets_[bucket].staged[worker].share = std::move(share);
  return true;
}

void ParameterShard::UseRepeat(int worker, int bucket) {
  BucketState& state = buckets_[bucket];
  if (accumulation_ == Accumulation::kEachAlone) state.spare = std::exchange(state.staged[worker], {});
}

ParameterShard::Added ParameterShard::AddChunk(int worker, int bucket, size_t offset, Pieces payload,
                                               uint64_t resets) {
  BucketState& state = buckets_[bucket];
  PSRING_CHECK(offset % kChunkBytes == 0 && offset + TotalBytes(payload) <= gradient_bytes(bucket));
  const size_t first = offset / SizeOf(wire_);
  if (accumulation_ != Accumulation::kSum) {
    float* to = static_cast<float*>(state.staged[worker].buffer->data()) + first;
    return {.not_finite = SetPieces(wire_, payload, to, finite_)};
  }
  float* sum = sum_.span().floats() + state.place.first + first;
  Chunk& chunk = state.chunks[offset / kChunkBytes];
  MutexLock lock(chunk.mutex);
  if (state.resets != resets) return {.added = false};
  if (chunk.started) return {.not_finite = AddPieces(wire_, payload, sum, finite_)};
  chunk.started = true;
  return {.not_finite = SetPieces(wire_, payload, sum, finite_)};
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
  buckets_[bucket].staged[worker] = {};
  buckets_[bucket].borrowed[worker] = {};
}

bool ParameterShard::is_staged(int worker, int bucket) const {
  return accumulation_ == Accumulation::kEachAlone && buckets_[bucket].staged[worker].share != nullptr;
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

ParameterShard::Added ParameterShard::AddWhole(int worker, int bucket, Bytes gradient, uint64_t resets) {
  if (accumulation_ == Accumulation::kEachAlone && wire_ == DType::kFloat32) {
    // It goes straight into the weights, and an update cannot be taken back: all of it is looked at before.
    if (finite_ == Finite::kRequired) {
      if (const auto at = FirstNotFinite(wire_, {&gradient, 1})) return {.not_finite = at};
    }
    buckets_[bucket].borrowed[worker] = gradient;
    return {};
  }
  size_t offset = 0;
  do {
    const Bytes chunk = gradient.subspan(offset, ChunkLength(gradient.size(), offset));
    Added added = AddChunk(worker, bucket, offset, {&chunk, 1}, resets);
    if (added.not_finite.has_value()) *added.not_finite += offset / SizeOf(wire_);
    if (!added.added || added.not_finite.has_value()) return added;
    offset += chunk.size();
  } while (offset < gradient.size());
  return {};
}

ConstSpan ParameterShard::SumOf(BucketState& state, std::span<const int> workers, Lane& lane) {
  const size_t count = state.place.count;
  if (accumulation_ == Accumulation::kSum) return sum_.span().Slice(state.place.first, count);
  if (accumulation_ == Accumulation::kEachAlone && state.staged[workers.front()].buffer == nullptr) {
    return {state.borrowed[workers.front()].data(), count};
  }
  const Span sum = state.staged[workers.front()].buffer->span().Slice(0, count);
  if (state.reduced) return sum;
  for (const int worker : workers.subspan(1)) {
    lane.ops->Add(sum, state.staged[worker].buffer->span().Slice(0, count), *lane.stream);
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
  // The stream has read the pushes by now: their buffers may go back, or serve the answers.
  if (accumulation_ == Accumulation::kEachAlone) {
    state.spare = std::exchange(state.staged[workers.front()], {});
  } else if (accumulation_ == Accumulation::kSumInOrder) {
    for (const int worker : workers) state.staged[worker] = {};
  }
  return absl::OkStatus();
}

absl::StatusOr<Snapshot> ParameterShard::Read(int bucket, Lane& lane) {
  BucketState& state = buckets_[bucket];
  const Span weights = WeightsOf(state);
  if (!sends_copies_) return Snapshot{weights, weights_};
  auto [share, copy] = std::exchange(state.spare, {});
  if (copy == nullptr) {
    if (share == nullptr) share = staging_->ReserveAnyway(weights.bytes());
    PSRING_ASSIGN_OR_RETURN(copy, staging_->Take(std::move(share), weights.bytes()));
  }
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
