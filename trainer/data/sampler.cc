#include "trainer/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"

namespace psring {

DistributedSampler::DistributedSampler(const SamplerOptions& options) : options_(options) {
  PSRING_CHECK(options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size);
  PSRING_CHECK(options.batch > 0 && options.micro_batches > 0 && options.count > 0);
  PSRING_CHECK(steps_per_epoch() > 0);
  order_.resize(options.count);
}

int64_t DistributedSampler::global_batch() const {
  return int64_t{options_.batch} * options_.micro_batches * options_.world_size;
}

int64_t DistributedSampler::steps_per_epoch() const {
  return options_.drop_last ? options_.count / global_batch()
                            : (options_.count + global_batch() - 1) / global_batch();
}

void DistributedSampler::StartEpoch(int64_t epoch) {
  epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), 0);
  Random(options_.seed, epoch).Shuffle(order_);
}

void DistributedSampler::SeekTo(int64_t step) {
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) StartEpoch(epoch);
  step_in_epoch_ = step % steps_per_epoch();
  peeked_.reset();
}

int64_t DistributedSampler::OfMachine(int64_t samples) const {
  const int64_t shares = int64_t{options_.world_size} * options_.micro_batches;
  const int64_t of_machine = int64_t{options_.ranks_per_machine} * options_.micro_batches;
  const int64_t begin = options_.rank / options_.ranks_per_machine * of_machine;
  // The shares below the remainder have one sample more.
  const int64_t more = std::clamp(samples % shares, begin, begin + of_machine) - begin;
  return of_machine * (samples / shares) + more;
}

SampledStep DistributedSampler::Next() {
  return peeked_.has_value() ? *std::exchange(peeked_, std::nullopt) : Draw();
}

const SampledStep& DistributedSampler::Peek() {
  if (!peeked_.has_value()) peeked_ = Draw();
  return *peeked_;
}

SampledStep DistributedSampler::Draw() {
  if (epoch_ < 0) StartEpoch(0);
  if (step_in_epoch_ == steps_per_epoch()) {
    StartEpoch(epoch_ + 1);
    step_in_epoch_ = 0;
  }
  const int64_t first = step_in_epoch_ * global_batch();
  const int64_t end = std::min(first + global_batch(), options_.count);
  ++step_in_epoch_;

  SampledStep step{.epoch = epoch_,
                   .machine_samples = OfMachine(end - first) * options_.predictions,
                   .global_samples = (end - first) * options_.predictions};
  const int64_t shares = int64_t{options_.world_size} * options_.micro_batches;
  for (int m = 0; m < options_.micro_batches; ++m) {
    std::vector<int64_t>& batch = step.batches.emplace_back();
    batch.reserve(options_.batch);
    const int64_t share = int64_t{options_.rank} * options_.micro_batches + m;
    for (int64_t i = first + share; i < end; i += shares) batch.push_back(order_[i]);
    step.samples += static_cast<int64_t>(batch.size()) * options_.predictions;
    int64_t of_all = 0;
    for (int64_t other = m; other < shares; other += options_.micro_batches) {
      of_all += (std::max<int64_t>(0, end - first - other) + shares - 1) / shares;
    }
    step.global_of_batches.push_back(of_all * options_.predictions);
  }
  return step;
}

std::vector<uint64_t> SampleSeeds(uint64_t seed, int64_t epoch, const std::vector<int64_t>& samples) {
  constexpr uint64_t kPurpose = 0x64726f706f7574;  // other numbers than those of the order and the weights
  const uint64_t of_epoch = Random(SplitMix64::Mix(seed) ^ kPurpose, static_cast<uint64_t>(epoch)).Next();
  std::vector<uint64_t> seeds;
  seeds.reserve(samples.size());
  for (const int64_t sample : samples)
    seeds.push_back(Random(of_epoch, static_cast<uint64_t>(sample)).Next());
  return seeds;
}

std::vector<std::vector<int64_t>> EvaluationBatches(int64_t count, int batch, int rank, int world_size) {
  PSRING_CHECK(batch > 0 && world_size > 0 && rank >= 0 && rank < world_size);
  std::vector<std::vector<int64_t>> batches;
  for (int64_t i = rank; i < count; i += world_size) {
    if (batches.empty() || static_cast<int>(batches.back().size()) == batch) {
      batches.emplace_back().reserve(batch);
    }
    batches.back().push_back(i);
  }
  return batches;
}

}  // namespace psring
