// Slows a worker down by sleeping: --straggler and --jitter_ms in a live run. A sleeping worker frees its
// processor for others, as a worker on a slower machine of its own would.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/cli/delays.h"
#include "common/measure/trace.h"
#include "common/options/training_options.h"

namespace psring {

// Used by the training thread. Assumes that computing is done when a call returns, as on a CPU.
class ComputeDelay {
 public:
  // InvalidArgument: flags that cannot be parsed.
  static absl::StatusOr<ComputeDelay> Create(const TrainingOptions& options, int worker, Clock clock);

  bool active() const { return factor_ != 1 || !jitter_.is_zero(); }

  // Begins `step`: sleeps for the step's random delay.
  void Begin(int64_t step);

  // After some computing: sleeps until it has taken `factor` times the processor's time. A sleep that took
  // too long shortens the step's next one. So every unit, and its buckets, are delayed in proportion.
  void Prolong();

  // The time since the last call does not count as computing.
  void Resume() {
    if (factor_ != 1) awake_since_ns_ = clock_();
  }

  int64_t slept_ns() const { return slept_ns_; }  // since Begin

 private:
  ComputeDelay(double factor, const TimeDistribution& jitter, uint64_t seed, int worker, Clock clock)
      : factor_(factor), jitter_(jitter), seed_(seed), worker_(worker), clock_(std::move(clock)) {}

  void Sleep(double ns);

  double factor_;
  TimeDistribution jitter_;
  uint64_t seed_;
  int worker_;
  Clock clock_;
  int64_t awake_since_ns_ = 0;
  int64_t slept_ns_ = 0;
  double owed_ns_ = 0;  // sleep still due; negative after one that took too long
};

}  // namespace psring
