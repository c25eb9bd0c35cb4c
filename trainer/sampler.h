// Which samples a worker sees, in which order. Pure: a function of count, seed, epoch, rank and world size.
#pragma once

#include <cstdint>
#include <vector>

namespace psring {

struct SamplerOptions {
  int64_t count = 0;  // samples in the data
  int rank = 0;
  int world_size = 1;
  int batch = 128;  // per worker
  uint64_t seed = 1;
  bool shuffle = true;
  bool drop_last =
      true;  // drop the last, incomplete global batch of an epoch; else it is shared out, nothing padded
};

// One global step's share of this rank.
struct SampledBatch {
  int64_t epoch = 0;
  std::vector<int64_t> indices;  // into the data; may be empty for a rank in a short last batch
  int64_t global_samples = 0;    // over all ranks, in this step
};

// Batches without end, one epoch after the other: the epoch's permutation of all samples (from seed and
// epoch), strided by rank, so that step s of all ranks together is slice [s * batch * world_size, ...) of the
// permutation. A new order every epoch by itself.
class DistributedSampler {
 public:
  explicit DistributedSampler(const SamplerOptions& options);

  SampledBatch Next();
  // As if `step` calls of Next had been made.
  void SeekTo(int64_t step);
  int64_t steps_per_epoch() const;

 private:
  void StartEpoch(int64_t epoch);

  SamplerOptions options_;
  int64_t epoch_ = -1;
  int64_t step_in_epoch_ = 0;
  std::vector<int64_t> order_;
};

// Every sample once over all ranks, in order, last batch short: for evaluation.
std::vector<std::vector<int64_t>> EvaluationBatches(int64_t count, int batch, int rank, int world_size);

}  // namespace psring
