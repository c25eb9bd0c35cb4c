#include "trainer/step/plan/loss_history.h"

#include <algorithm>

namespace psring {

void LossHistory::Add(const Step& step) {
  const double loss_sum = step.loss * static_cast<double>(step.samples);
  ++steps_;
  if (!blocks_.empty() && blocks_.back().steps < steps_per_block_) {
    Block& last = blocks_.back();
    last.last_step = step.step;
    ++last.steps;
    last.samples += step.samples;
    last.counted += step.counted;
    last.loss_sum += loss_sum;
    return;
  }
  if (blocks_.size() == most_blocks_) MergePairs();
  blocks_.push_back({.first_step = step.step,
                     .last_step = step.step,
                     .steps = 1,
                     .samples = step.samples,
                     .counted = step.counted,
                     .loss_sum = loss_sum});
}

void LossHistory::MergePairs() {
  steps_per_block_ *= 2;
  size_t kept = 0;
  for (size_t i = 0; i < blocks_.size(); i += 2) {
    Block merged = blocks_[i];
    if (i + 1 < blocks_.size()) {
      const Block& next = blocks_[i + 1];
      merged.last_step = next.last_step;
      merged.steps += next.steps;
      merged.samples += next.samples;
      merged.counted += next.counted;
      merged.loss_sum += next.loss_sum;
    }
    blocks_[kept++] = merged;
  }
  blocks_.resize(kept);
}

int64_t LossHistory::RemoveFrom(int64_t step) {
  int64_t removed = 0;
  while (!blocks_.empty() && blocks_.back().last_step >= step) {
    Block& last = blocks_.back();
    if (last.first_step >= step) {
      removed += last.counted;
      steps_ -= last.steps;
      blocks_.pop_back();
      continue;
    }
    // Assumes that the steps of one block are alike.
    const int64_t kept = step - last.first_step, all = last.last_step + 1 - last.first_step;
    const auto share = [&](int64_t value) { return value * kept / all; };
    removed += last.counted - share(last.counted);
    steps_ -= last.steps - share(last.steps);
    last = {.first_step = last.first_step,
            .last_step = step - 1,
            .steps = share(last.steps),
            .samples = share(last.samples),
            .counted = share(last.counted),
            .loss_sum = last.loss_sum * static_cast<double>(kept) / static_cast<double>(all)};
  }
  taken_ = std::min(taken_, steps_);
  return removed;
}

double LossHistory::TakeMean() {
  const double mean = MeanFrom(std::min(taken_, steps_ - 1));
  taken_ = steps_;
  return mean;
}

double LossHistory::MeanOfLastTenth() const { return MeanFrom(steps_ - std::max<int64_t>(1, steps_ / 10)); }

double LossHistory::MeanFrom(int64_t index) const {
  double sum = 0;
  int64_t samples = 0, end = 0;
  for (const Block& block : blocks_) {
    end += block.steps;
    if (end <= index) continue;
    sum += block.loss_sum;
    samples += block.samples;
  }
  return sum / static_cast<double>(std::max<int64_t>(1, samples));
}

}  // namespace psring
