// How pushes become an update, in one pass through memory.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "common/reduce/reduce.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {
namespace {

constexpr size_t kBlock = 4096;  // floats, whose results fit into a first-level cache

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
    // One pass through memory: a block is added, applied and copied while it is in the first-level cache.
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
