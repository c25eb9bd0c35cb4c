// The state of a running experiment, for the page that --live serves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/measure/trace.h"
#include "experiments/processes/progress.h"

namespace psring {

// Thread-safe: the launching thread writes it, the HTTP server's thread reads it.
class LiveRun {
 public:
  // `report`: path of the final report. `link_bits_per_s`: of each worker; 0: unknown. `counts_tokens`: the
  // samples are the tokens of a text.
  LiveRun(const std::string& run_id, const std::string& report, double link_bits_per_s, bool counts_tokens,
          Clock clock = MonotonicNanos);

  // A launch ("round 1/5  ring x 4") begins.
  void Begin(const std::string& launch, int ranks);
  void Note(const ProgressEvent& event);
  // The launch has ended.
  void End(const std::string& outcome);

  // {run_id, report, unit: "samples" or "tokens", elapsed_s, launch, launch_s, steps, steps_planned,
  // samples_per_s, mbit_per_s, link_pct, loss, ranks: [{rank, doing, step, steps, loss}], points: [[seconds,
  // samples/s, loss]], done: [{launch, outcome, seconds}]}. Rates are over the last two seconds or more;
  // unknown figures are null. mbit_per_s is the mean sent per rank. At kMostPoints points, every other one is
  // dropped.
  std::string Json() const;

  static constexpr size_t kMostPoints = 240;

 private:
  struct Totals {
    int64_t at_ns = 0;
    double samples = 0, tx_bytes = 0;
  };
  struct Point {
    double seconds, samples_per_s, loss;
  };
  struct Finished {
    std::string launch, outcome;
    double seconds;
  };
  Totals Now() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double Loss() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string run_id_, report_;
  const double link_bits_per_s_;
  const bool counts_tokens_;
  const Clock clock_;
  const int64_t begin_ns_;

  mutable Mutex mutex_;
  std::string launch_ ABSL_GUARDED_BY(mutex_);  // empty: none is running
  int64_t launch_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ProgressEvent> ranks_ ABSL_GUARDED_BY(mutex_);  // the last event of each, with its last counts
  std::vector<Totals> recent_ ABSL_GUARDED_BY(mutex_);        // over the last seconds
  double samples_per_s_ ABSL_GUARDED_BY(mutex_) = -1, bits_per_s_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<Point> points_ ABSL_GUARDED_BY(mutex_);
  int64_t point_every_ns_ ABSL_GUARDED_BY(mutex_) = 0, next_point_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Finished> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
