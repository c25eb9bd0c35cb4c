// The losses of a rank's steps, in bounded memory. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace psring {

// Exact up to `most_blocks` steps. Beyond that, adjacent steps share a block, and an interval that begins
// within a block includes all of it.
class LossHistory {
 public:
  static constexpr size_t kMaxBlocks = 1 << 13;
  LossHistory() = default;
  explicit LossHistory(size_t most_blocks) : most_blocks_(most_blocks) {}

  struct Step {
    int64_t step = 0;
    int64_t samples = 0;  // of which `loss` is the mean
    int64_t counted = 0;  // of them, those that count as trained on
    double loss = 0;
  };
  // Steps are added in increasing order.
  void Add(const Step& step);

  // Removes all steps from `step` on; returns how many of their samples had counted.
  int64_t RemoveFrom(int64_t step);

  // The mean loss over the samples since the last call; of the last step if there was none since.
  double TakeMean();
  // Over the last tenth of all steps, at least one.
  double MeanOfLastTenth() const;

 private:
  struct Block {
    int64_t first_step, last_step;
    int64_t steps, samples, counted;
    double loss_sum;  // over samples
  };
  void MergePairs();
  double MeanFrom(int64_t index) const;

  size_t most_blocks_ = kMaxBlocks;
  int64_t steps_per_block_ = 1;
  std::vector<Block> blocks_;  // all but the last hold steps_per_block_ steps, unless steps were removed
  int64_t steps_ = 0;
  int64_t taken_ = 0;  // steps before the last TakeMean
};

}  // namespace psring
