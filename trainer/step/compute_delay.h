// Makes a worker slower than its processor, by sleeping: --straggler and --jitter_ms in a live run. A
// sleeping worker leaves its processor to others, which one with less to compute would do as well.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/delays.h"
#include "common/measure/trace.h"
#include "common/options/training_options.h"

namespace psring {

// Used by the training thread. Computing is taken to be done when a call returns, as it is on a CPU.
class ComputeDelay {
 public:
  // InvalidArgument: flags that cannot be read.
  static absl::StatusOr<ComputeDelay> Create(const TrainingOptions& options, int worker, Clock clock);

  bool active() const { return factor_ != 1 || !jitter_.is_zero(); }

  // The computing of `step` begins: sleeps the step's random delay.
  void Begin(int64_t step);

  // Some more has been computed. Sleeps until that has taken `factor` times the processor's time; what a
  // sleep was too long by is taken from the step's next. So every layer, and with it every bucket, is late in
  // proportion.
  void Prolong();

  // What was done since the last call is no computing.
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
  double owed_ns_ = 0;  // sleep that is due; below 0 after one that took too long
};

}  // namespace psring
