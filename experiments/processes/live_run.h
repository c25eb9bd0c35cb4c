// What is known of a run while it goes on, for the page that --live serves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/measure/trace.h"
#include "experiments/processes/progress.h"

namespace psring {

// Told by the thread that launches, read by the one that serves.
class LiveRun {
 public:
  // `report`: where the page will be when all is done. `link_bits_per_s`: of each worker; 0: not known.
  LiveRun(const std::string& run_id, const std::string& report, double link_bits_per_s,
          Clock clock = MonotonicNanos);

  // A launch of so many processes begins: "round 1/5  ring x 4".
  void Begin(const std::string& launch, int ranks);
  void Note(const ProgressEvent& event);
  // It is over.
  void End(const std::string& outcome);

  // {run_id, report, elapsed_s, launch, launch_s, steps, steps_planned, samples_per_s, mbit_per_s, link_pct,
  // loss, ranks: [{rank, doing, step, steps, loss}], points: [[seconds, samples/s, loss]], done: [{launch,
  // outcome, seconds}]}. Rates are over the last two seconds or more; a figure that is not known is null.
  // mbit_per_s: sent by a worker on average; at most kMostPoints points, neighbours left out as they grow.
  std::string Json() const;

  static constexpr size_t kMostPoints = 240;

 private:
  struct Sums {
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
  Sums Now() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double Loss() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string run_id_, report_;
  const double link_bits_per_s_;
  const Clock clock_;
  const int64_t begin_ns_;

  mutable Mutex mutex_;
  std::string launch_ ABSL_GUARDED_BY(mutex_);  // empty: none is under way
  int64_t launch_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ProgressEvent> ranks_ ABSL_GUARDED_BY(mutex_);  // the last of each, counts kept
  std::vector<Sums> recent_ ABSL_GUARDED_BY(mutex_);          // of the last seconds
  double samples_per_s_ ABSL_GUARDED_BY(mutex_) = -1, bits_per_s_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<Point> points_ ABSL_GUARDED_BY(mutex_);
  int64_t point_every_ns_ ABSL_GUARDED_BY(mutex_) = 0, next_point_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Finished> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
