#include "ring_worker/transports/copy_choice.h"

#include <algorithm>

namespace psring {

int64_t CopyChoice::Median(Times times) {
  std::ranges::sort(times);
  return times[kTimes / 2];
}

void CopyChoice::Note(int64_t ns) {
  const bool passes = passes_caches();
  since_change_ = passes == last_ ? since_change_ + 1 : 0;
  last_ = passes;
  if (since_change_ >= kSettles) ns_[passes][since_change_ % kTimes] = ns;
  if (++calls_ == try_at_ + kTry) {
    try_at_ = calls_ + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
  }
  if (calls_ < kWarmUp + kTry || TriesOther() || Median(ns_[!passes_]) >= Median(ns_[passes_])) return;
  passes_ = !passes_;
  pause_ = kShortestPause;
}

}  // namespace psring
