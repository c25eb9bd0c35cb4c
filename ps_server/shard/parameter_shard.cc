#include "ps_server/shard/parameter_shard.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "ps_server/shard/job_memory.h"

namespace psring {

namespace {

// Some workers may be two updates ahead of one that still receives.
bool SendsCopies(const WaitingRule& rule) {
  return rule.each_alone() || (rule.kind == WaitingRule::Kind::kBackup && rule.number > 0);
}

// At least one push; serial: a whole gradient.
size_t Window(const ServerJob& job, size_t wanted) {
  size_t most = 0, all = 0;
  for (const Bucket& bucket : job.buckets) {
    most = std::max(most, bucket.count * sizeof(float));
    all += bucket.count * sizeof(float);
  }
  return std::max(wanted, job.serial ? all : most);
}

}  // namespace

Accumulation AccumulationOf(const ServerJob& job) {
  if (RuleOf(job).each_alone()) return Accumulation::kEachAlone;
  return job.deterministic ? Accumulation::kSumInOrder : Accumulation::kSum;
}

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Create(const ServerJob& job, Device& device,
                                                                       const ShardOptions& options) {
  PSRING_RETURN_IF_ERROR(RequireMemory(job, device));
  const auto made = [&]() -> absl::StatusOr<std::unique_ptr<ParameterShard>> {
    PSRING_ASSIGN_OR_RETURN(Optimizer optimizer,
                            Optimizer::Create(job.optimizer, device, static_cast<size_t>(job.parameters)));
    auto shard =
        std::unique_ptr<ParameterShard>(new ParameterShard(job, device, std::move(optimizer), options));
    PSRING_RETURN_IF_ERROR(shard->Allocate());
    return shard;
  };
  absl::StatusOr<std::unique_ptr<ParameterShard>> shard = made();
  if (shard.ok() || shard.status().code() != absl::StatusCode::kResourceExhausted) return shard;
  const JobMemory need = MemoryOf(job, device.host_reads_memory());
  return ResourceExhausted(DescribeNeed(job, need.on_device), ": ", shard.status().message());
}

absl::Status ParameterShard::Allocate() {
  const size_t bytes = static_cast<size_t>(parameters_) * sizeof(float);
  PSRING_ASSIGN_OR_RETURN(Buffer weights, device_.Allocate(bytes));
  weights_ = std::make_shared<Buffer>(std::move(weights));
  if (accumulation_ == Accumulation::kSum) {
    PSRING_ASSIGN_OR_RETURN(sum_, device_.Allocate(bytes));
  }
  host_weights_ = weights_;
  if (!on_host_ && !sends_copies_) {
    PSRING_ASSIGN_OR_RETURN(Buffer pinned, device_.AllocateOnHost(bytes));
    host_weights_ = std::make_shared<Buffer>(std::move(pinned));
  }
  PSRING_ASSIGN_OR_RETURN(on_device_, MakeShardDevice(device_));
  return absl::OkStatus();
}

ParameterShard::ParameterShard(const ServerJob& job, Device& device, Optimizer optimizer,
                               const ShardOptions& options)
    : accumulation_(AccumulationOf(job)),
      wire_(job.wire),
      sends_copies_(SendsCopies(RuleOf(job))),
      bounded_(RuleOf(job).kind == WaitingRule::Kind::kBoundedStaleness),
      serial_(job.serial),
      finite_(options.reject_nonfinite ? Finite::kRequired : Finite::kAny),
      schedule_(job.schedule),
      parameters_(job.parameters),
      device_(device),
      on_host_(device.host_reads_memory()),
      optimizer_(std::move(optimizer)),
      step_shares_(job.workers),
      staging_(std::make_shared<StagingPool>(device, Window(job, options.staging_bytes))),
      answers_(on_host_ ? staging_
                        : std::make_shared<StagingPool>(device, staging_->window(),
                                                        StagingPool::Memory::kPinned)) {
  for (const Bucket& place : job.buckets) {
    BucketState& bucket = buckets_.emplace_back();
    bucket.place = place;
    bucket.staged.resize(job.workers);
    bucket.borrowed.resize(job.workers);
    if (accumulation_ == Accumulation::kSum) {
      bucket.chunks = std::make_unique<Chunk[]>(place.count * sizeof(float) / kChunkBytes + 1);
    }
  }
}

Span ParameterShard::ValuesOf(const BucketState& bucket, int slot) const {
  const Span all = slot == 0 ? weights_->span() : optimizer_.slots()[static_cast<size_t>(slot) - 1];
  return all.Slice(bucket.place.first, bucket.place.count);
}

absl::Status ParameterShard::SetValues(int slot, int bucket, size_t offset, Pieces payload) {
  const Span part =
      ValuesOf(buckets_[bucket], slot).Slice(offset / sizeof(float), TotalBytes(payload) / sizeof(float));
  if (slot == 0) buckets_[bucket].handed_out = false;
  return on_device_->TakeIn(ShardDevice::Take::kSet, DType::kFloat32, payload, part, Finite::kAny).status();
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

absl::StatusOr<bool> ParameterShard::BeginPush(int worker, int bucket, int64_t step,
                                               const WholeGradient* whole) {
  if (accumulation_ == Accumulation::kSum) return true;
  BucketState& state = buckets_[bucket];
  const bool from_there = whole != nullptr && borrows(*whole);
  if (accumulation_ == Accumulation::kSumInOrder) {
    if (from_there) return true;
    PSRING_ASSIGN_OR_RETURN(
        state.staged[worker].buffer,
        staging_->Take(staging_->ReserveAnyway(bucket_bytes(bucket)), bucket_bytes(bucket)));
    return true;
  }
  if (from_there && !bounded_) return true;
  StagingPool::Share share = Reserve(worker, bucket, step);
  if (share == nullptr) return false;
  if (!from_there) {
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

uint64_t ParameterShard::Reset(int bucket) {
  BucketState& state = buckets_[bucket];
  // First, so that a thread that reaches an emptied chunk does not add to it.
  const uint64_t resets = ++state.resets;
  if (accumulation_ == Accumulation::kSum) MarkSum(bucket, /*started=*/false);
  return resets;
}

void ParameterShard::MarkSum(int bucket, bool started) {
  for (size_t i = 0; i <= bucket_bytes(bucket) / kChunkBytes; ++i) {
    MutexLock lock(buckets_[bucket].chunks[i].mutex);
    buckets_[bucket].chunks[i].started = started;
    if (i == 0) std::ranges::fill(buckets_[bucket].borrowed, WholeGradient{});
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

absl::Status ParameterShard::SaveBucket(int bucket, float* values) const {
  const BucketState& state = buckets_[bucket];
  values += state.place.first;
  for (int slot = 0; slot <= slots(); ++slot, values += parameters_) {
    PSRING_RETURN_IF_ERROR(on_device_->CopyToHost(ValuesOf(state, slot), values, /*pinned=*/false));
  }
  return absl::OkStatus();
}

absl::Status ParameterShard::LoadBucket(int bucket, const float* values) {
  values += buckets_[bucket].place.first;
  for (int slot = 0; slot <= slots(); ++slot, values += parameters_) {
    const Bytes all = std::as_bytes(std::span(values, buckets_[bucket].place.count));
    for (size_t at = 0; at < all.size(); at += kChunkBytes) {
      const Bytes chunk = all.subspan(at, ChunkLength(all.size(), at));
      PSRING_RETURN_IF_ERROR(SetValues(slot, bucket, at, {&chunk, 1}));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Snapshot> ParameterShard::Read(int bucket) {
  BucketState& state = buckets_[bucket];
  const Span weights = ValuesOf(state);
  if (!sends_copies_) {
    const Span handed = host_weights_->span().Slice(state.place.first, state.place.count);
    if (!on_host_ && !std::exchange(state.handed_out, true)) {
      PSRING_RETURN_IF_ERROR(on_device_->CopyToHost(weights, handed.data, /*pinned=*/true));
    }
    return Snapshot{handed, host_weights_};
  }
  auto [share, copy] = std::exchange(state.spare, {});
  if (copy == nullptr || !on_host_) {
    if (share == nullptr) share = staging_->ReserveAnyway(weights.bytes());
    PSRING_ASSIGN_OR_RETURN(copy, answers_->Take(std::move(share), weights.bytes()));
  }
  PSRING_RETURN_IF_ERROR(on_device_->CopyToHost(weights, copy->data(), /*pinned=*/true));
  const Span copied = copy->span().Slice(0, weights.count);
  return Snapshot{copied, std::move(copy)};
}

absl::Status ParameterShard::CopyWeightsTo(int bucket, std::byte* to, bool on_gpu, Lane& lane) const {
  const Span weights = ValuesOf(buckets_[bucket]);
  if (!on_gpu) return on_device_->CopyToHost(weights, to, /*pinned=*/false);
  return on_device_->Compute(lane,
                             [&](Ops&, Stream& stream) { stream.Copy(to, weights.data, weights.bytes()); });
}

absl::StatusOr<Snapshot> ParameterShard::Copy(int bucket, int slot) const {
  const Span values = ValuesOf(buckets_[bucket], slot);
  PSRING_ASSIGN_OR_RETURN(Buffer buffer, MakeCpuDevice()->Allocate(values.bytes()));
  PSRING_RETURN_IF_ERROR(on_device_->CopyToHost(values, buffer.data(), /*pinned=*/false));
  auto copy = std::make_shared<Buffer>(std::move(buffer));
  return Snapshot{{copy->data(), values.count}, copy};
}

}  // namespace psring
