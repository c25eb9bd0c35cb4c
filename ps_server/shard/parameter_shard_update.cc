// How gradients arrive, and how they become an update, in one pass through memory.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/kernels/reduce.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {
namespace {

// Gradients that are read together in one pass; more are added as they arrive.
constexpr ptrdiff_t kMaxBorrowed = 4;

constexpr size_t kBlock = 4096;  // floats; a block's results fit into an L1 cache

// Adds terms from left to right, one range at a time. For one thread.
class TermSum {
 public:
  explicit TermSum(std::span<const float* const> terms) : terms_(terms), from_(terms.size()) {}

  void Into(float* to, size_t first, size_t count) {
    for (size_t i = 0; i < terms_.size(); ++i) from_[i] = terms_[i] + first;
    cpu::Reduce(ReduceOp::kSum, DType::kFloat32, count, to, from_.data(), static_cast<int>(from_.size()));
  }

 private:
  const std::span<const float* const> terms_;
  std::vector<const void*> from_;
};

}  // namespace

absl::StatusOr<ParameterShard::Added> ParameterShard::AddChunk(int worker, int bucket, size_t offset,
                                                               Pieces payload, uint64_t resets) {
  using Take = ShardDevice::Take;
  BucketState& state = buckets_[bucket];
  PSRING_CHECK(offset % kChunkBytes == 0 && offset + TotalBytes(payload) <= gradient_bytes(bucket));
  const size_t first = offset / SizeOf(wire_), count = TotalBytes(payload) / SizeOf(wire_);
  Added added;
  if (accumulation_ != Accumulation::kSum) {
    const Span to = state.staged[worker].buffer->span().Slice(first, count);
    PSRING_ASSIGN_OR_RETURN(added.not_finite, on_device_->TakeIn(Take::kSet, wire_, payload, to, finite_));
    return added;
  }
  const Span sum = sum_.span().Slice(state.place.first + first, count);
  Chunk& chunk = state.chunks[offset / kChunkBytes];
  MutexLock lock(chunk.mutex);
  if (state.resets != resets) return Added{.added = false};
  const Take take = std::exchange(chunk.started, true) ? Take::kAdd : Take::kSet;
  PSRING_ASSIGN_OR_RETURN(added.not_finite, on_device_->TakeIn(take, wire_, payload, sum, finite_));
  return added;
}

absl::StatusOr<ParameterShard::Added> ParameterShard::AddWhole(int worker, int bucket,
                                                               const WholeGradient& whole, Lane& lane,
                                                               uint64_t resets) {
  const Bytes gradient = whole.gradient;
  const ConstSpan values(gradient.data(), gradient.size() / SizeOf(wire_), wire_);
  const bool borrowed = borrows(whole) && Borrow(worker, bucket, whole, resets);
  // Gradients on the GPU, and those that are not added now, are checked before any of it is added.
  if (finite_ == Finite::kRequired && (borrowed || whole.on_gpu)) {
    Added added;
    PSRING_ASSIGN_OR_RETURN(added.not_finite, on_device_->FirstNotFinite(values, lane));
    if (added.not_finite.has_value()) return added;
  }
  if (borrowed) return Added{};
  if (whole.on_gpu) return AddOnGpu(worker, bucket, values, lane, resets);
  size_t offset = 0;
  do {
    const Bytes chunk = gradient.subspan(offset, ChunkLength(gradient.size(), offset));
    PSRING_ASSIGN_OR_RETURN(Added added, AddChunk(worker, bucket, offset, {&chunk, 1}, resets));
    if (added.not_finite.has_value()) *added.not_finite += offset / SizeOf(wire_);
    if (!added.added || added.not_finite.has_value()) return added;
    offset += chunk.size();
  } while (offset < gradient.size());
  return Added{};
}

bool ParameterShard::Borrow(int worker, int bucket, const WholeGradient& whole, uint64_t resets) {
  BucketState& state = buckets_[bucket];
  if (accumulation_ != Accumulation::kSum) {
    state.borrowed[worker] = whole;
    return true;
  }
  MutexLock lock(state.chunks[0].mutex);
  const auto stands = [](const WholeGradient& other) { return other.gradient.data() != nullptr; };
  if (state.resets != resets || std::ranges::count_if(state.borrowed, stands) == kMaxBorrowed) return false;
  state.borrowed[worker] = whole;
  return true;
}

// One kernel per run of chunks that all contain a gradient already, or all do not: usually one in total.
absl::StatusOr<ParameterShard::Added> ParameterShard::AddOnGpu(int worker, int bucket, ConstSpan gradient,
                                                               Lane& lane, uint64_t resets) {
  BucketState& state = buckets_[bucket];
  if (accumulation_ != Accumulation::kSum) {
    const Span to = state.staged[worker].buffer->span().Slice(0, gradient.count);
    PSRING_RETURN_IF_ERROR(
        on_device_->Compute(lane, [&](Ops& ops, Stream& stream) { ops.Convert(gradient, to, stream); }));
    return Added{};
  }
  const size_t chunks = gradient.bytes() / kChunkBytes + 1, per_chunk = kChunkBytes / SizeOf(wire_);
  std::vector<std::unique_ptr<MutexLock>> locks;
  for (size_t i = 0; i < chunks; ++i) locks.push_back(std::make_unique<MutexLock>(state.chunks[i].mutex));
  if (state.resets != resets) return Added{.added = false};
  PSRING_RETURN_IF_ERROR(on_device_->Compute(lane, [&](Ops& ops, Stream& stream) {
    for (size_t first = 0, end = 0; first < chunks; first = end) {
      const bool started = state.chunks[first].started;
      for (end = first; end < chunks && state.chunks[end].started == started; ++end) {
        state.chunks[end].started = true;
      }
      const size_t at = first * per_chunk, count = std::min(gradient.count, end * per_chunk) - at;
      const Span sum = sum_.span().Slice(state.place.first + at, count);
      if (started) {
        ops.Add(sum, gradient.Slice(at, count), stream);
      } else {
        ops.Convert(gradient.Slice(at, count), sum, stream);
      }
    }
  }));
  return Added{};
}

std::vector<const float*> ParameterShard::TermsOf(BucketState& state, std::span<const int> workers) {
  std::vector<const float*> terms;
  if (accumulation_ == Accumulation::kSum) {
    MutexLock lock(state.chunks[0].mutex);
    if (state.chunks[0].started) terms.push_back(sum_.span().floats() + state.place.first);
    for (const WholeGradient& whole : state.borrowed) {
      if (whole.gradient.data() != nullptr) {
        terms.push_back(reinterpret_cast<const float*>(whole.gradient.data()));
      }
    }
    return terms;
  }
  for (const int worker : state.reduced ? workers.first(1) : workers) {
    const Staged& staged = state.staged[worker];
    terms.push_back(staged.buffer != nullptr
                        ? staged.buffer->span().floats()
                        : reinterpret_cast<const float*>(state.borrowed[worker].gradient.data()));
  }
  return terms;
}

absl::StatusOr<Span> ParameterShard::AddUp(BucketState& state, std::span<const int> workers, Lane& lane) {
  const std::vector<const float*> terms = TermsOf(state, workers);
  const size_t count = state.place.count;
  Span sum;
  if (accumulation_ == Accumulation::kSum) {
    sum = sum_.span().Slice(state.place.first, count);
  } else {
    Staged& first = state.staged[workers.front()];
    if (first.buffer == nullptr) {
      PSRING_ASSIGN_OR_RETURN(first.buffer, staging_->Take(staging_->ReserveAnyway(count * sizeof(float)),
                                                           count * sizeof(float)));
    }
    sum = first.buffer->span().Slice(0, count);
  }
  if (terms.size() == 1 && terms.front() == sum.floats()) return sum;
  PSRING_RETURN_IF_ERROR(on_device_->ComputeInParts(
      lane, count,
      [&](size_t first, size_t part, Ops& ops, Stream& stream) {
        if (!on_host_) {
          for (const float* term : std::span(terms).subspan(1)) ops.Add(sum, ConstSpan(term, count), stream);
        } else {
          TermSum(terms).Into(sum.floats() + first, first, part);
        }
      },
      [](size_t) {}));
  if (accumulation_ == Accumulation::kSum) MarkSum(state.place.index, /*started=*/true);
  return sum;
}

absl::StatusOr<double> ParameterShard::Reduce(int bucket, std::span<const int> workers, Lane& lane) {
  BucketState& state = buckets_[bucket];
  PSRING_ASSIGN_OR_RETURN(const Span sum, AddUp(state, workers, lane));
  state.reduced = true;
  return on_device_->SumOfSquares(sum, lane);
}

absl::Status ParameterShard::Apply(int bucket, std::span<const int> workers, int64_t samples, int64_t version,
                                   const Factors& factors, Lane& lane, const Outlets& outlets) {
  BucketState& state = buckets_[bucket];
  const double learning_rate = LearningRate(schedule_, state.samples_applied) * factors.rate;
  const Span weights = ValuesOf(state);
  const auto step = [&](size_t first, ConstSpan gradient, Ops& ops, Stream& stream) {
    // A short last batch may leave a worker without samples.
    if (samples == 0) return;
    optimizer_.Apply(state.place.first + first, weights.Slice(first, gradient.count), gradient, samples,
                     learning_rate, version, ops, stream, factors.gradient);
  };
  const std::vector<const float*> terms = TermsOf(state, workers);
  if (!on_host_) {
    ConstSpan gradient(terms.front(), weights.count);
    if (terms.size() > 1) {
      PSRING_ASSIGN_OR_RETURN(gradient, AddUp(state, workers, lane));
    }
    PSRING_RETURN_IF_ERROR(
        on_device_->Compute(lane, [&](Ops& ops, Stream& stream) { step(0, gradient, ops, stream); }));
    outlets.made(bucket_bytes(bucket));
  } else {
    // One pass through memory: a block is added, applied and copied while it is in the L1 cache.
    const auto part = [&](size_t begin, size_t count, Ops& ops, Stream& stream) {
      float sum[kBlock];
      TermSum term_sum(terms);
      for (size_t first = begin; first < begin + count; first += kBlock) {
        const size_t length = std::min(kBlock, begin + count - first);
        const float* gradient = terms.front() + first;
        if (terms.size() > 1) {
          term_sum.Into(sum, first, length);
          gradient = sum;
        }
        step(first, ConstSpan(gradient, length), ops, stream);
        for (std::byte* place : outlets.places) {
          std::memcpy(place + first * sizeof(float), weights.floats() + first, length * sizeof(float));
        }
      }
    };
    PSRING_RETURN_IF_ERROR(on_device_->ComputeInParts(
        lane, weights.count, part, [&](size_t end) { outlets.made(end * sizeof(float)); }));
  }
  if (accumulation_ == Accumulation::kSum) MarkSum(bucket, /*started=*/false);
  state.reduced = false;
  state.handed_out = false;
  state.samples_applied += std::min(samples, INT64_MAX - state.samples_applied);
  // The pushes have been read: their buffers are freed, or used for the answers.
  if (accumulation_ == Accumulation::kEachAlone) {
    state.spare = std::exchange(state.staged[workers.front()], {});
  } else if (accumulation_ == Accumulation::kSumInOrder) {
    for (const int worker : workers) state.staged[worker] = {};
  }
  if (accumulation_ != Accumulation::kSum) {
    for (const int worker : workers) state.borrowed[worker] = {};
  }
  return absl::OkStatus();
}

}  // namespace psring
