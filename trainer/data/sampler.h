// The order of a worker's samples. Pure: a function of count, seed, epoch, rank and world size.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace psring {

struct SamplerOptions {
  int64_t count = 0;  // samples in the data
  int rank = 0;
  int world_size = 1;
  int ranks_per_machine = 1;  // numbered consecutively
  int batch = 128;            // per micro-batch
  int micro_batches = 1;      // that a worker draws for a step
  int predictions = 1;        // of a sample (SampleSpec::labels)
  uint64_t seed = 1;
  // Drop the last, incomplete global batch of an epoch; else distribute it without padding.
  bool drop_last = true;
};

// This rank's share of a step.
struct SampledStep {
  int64_t epoch = 0;
  // Indices into the data, by micro-batch; in a short last step some or all may be empty.
  std::vector<std::vector<int64_t>> batches;
  // Counted in predictions, as everything after the sampler counts: samples, or the tokens of a text.
  int64_t samples = 0;                          // in these
  int64_t machine_samples = 0;                  // over the ranks of this rank's machine, in this step
  int64_t global_samples = 0;                   // over all ranks, in this step
  std::vector<int64_t> global_of_batches = {};  // the same, by micro-batch
};

// Unlimited steps, epoch after epoch. An epoch is a permutation of all samples (from seed and epoch), strided
// by rank: step s of all ranks together is slice [s * G, (s + 1) * G) of the permutation, with G = batch *
// micro_batches * world_size. Micro-batch m of M of rank r is the batch that rank r * M + m would have among
// M times as many ranks.
class DistributedSampler {
 public:
  explicit DistributedSampler(const SamplerOptions& options);

  SampledStep Next();
  // What Next will return.
  const SampledStep& Peek();
  // As after `step` calls of Next.
  void SeekTo(int64_t step);
  int64_t steps_per_epoch() const;

 private:
  SampledStep Draw();
  void StartEpoch(int64_t epoch);
  // How many of a step's `samples` over all ranks this rank's machine draws.
  int64_t OfMachine(int64_t samples) const;
  int64_t global_batch() const;

  SamplerOptions options_;
  int64_t epoch_ = -1;
  int64_t step_in_epoch_ = 0;
  std::vector<int64_t> order_;
  std::optional<SampledStep> peeked_;
};

// For layers that draw random numbers, a seed for each of `samples`: a function of the training's seed, the
// epoch and the sample, so that it does not depend on the ranks, batches and restarts of the training.
std::vector<uint64_t> SampleSeeds(uint64_t seed, int64_t epoch, const std::vector<int64_t>& samples);

// For evaluation: every sample once over all ranks, in order; the last batch may be short.
std::vector<std::vector<int64_t>> EvaluationBatches(int64_t count, int batch, int rank, int world_size);

}  // namespace psring
