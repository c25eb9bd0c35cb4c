#include "trainer/step/compute_delay.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"

namespace psring {

absl::StatusOr<ComputeDelay> ComputeDelay::Create(const TrainingOptions& options, int worker, Clock clock) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<Straggler> stragglers, ParseStragglers(options.straggler));
  PSRING_ASSIGN_OR_RETURN(const TimeDistribution jitter, ParseTimeDistribution(options.jitter_ms));
  return ComputeDelay(SlownessOf(stragglers, worker), jitter, options.seed, worker, std::move(clock));
}

void ComputeDelay::Begin(int64_t step) {
  slept_ns_ = 0;
  owed_ns_ = 0;  // else an earlier sleep that took too long would shorten this step's random delay
  if (!active()) return;
  awake_since_ns_ = clock_();
  Sleep(1e6 * DrawMs(jitter_, seed_, TimeUse::kJitter, worker_, step));
}

void ComputeDelay::Prolong() {
  if (factor_ == 1) return;
  Sleep((factor_ - 1) * static_cast<double>(clock_() - awake_since_ns_));
}

void ComputeDelay::Sleep(double ns) {
  owed_ns_ += ns;
  const int64_t begin = clock_();
  if (owed_ns_ > 0) {
    absl::SleepFor(absl::Nanoseconds(owed_ns_));
    const int64_t end = clock_();
    slept_ns_ += end - begin;
    owed_ns_ -= static_cast<double>(end - begin);
    awake_since_ns_ = end;
  } else {
    awake_since_ns_ = begin;
  }
}

}  // namespace psring
