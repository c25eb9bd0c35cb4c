// How long steps take with parameter servers on a described network: drives the very Consistency that the
// servers run. Pure.
//
// A worker computes; bucket b's gradient is ready at forward_s + ready_s[b]. It pushes its buckets one after
// the other, 1/S of each to every server, and gets weights back the same way. A synchronous server adds what
// comes while it comes and updates once all have pushed; one that takes each push alone queues it, adds and
// updates, and answers. The next step begins when all weights are there. All of it shares cards, links within
// nodes and the fabric by max-min fairness.
//
// Workers that do the same at the same time are one *group*, which is exact. Where each push is an update by
// itself, workers are simulated one by one; above kMostAlone of them, so many stand for all, with their part
// of everything that is shared.
//
// With spare workers the job's one Admission decides, as in the live server: a worker says that its backward
// pass has ended, hears whether its gradient counts, and pushes only then; a dropped one reads the newest
// weights and goes on with the step that builds on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/delays.h"
#include "experiments/simulator/cluster.h"
#include "experiments/theory/cost_model.h"

namespace psring {

inline constexpr int kMostAlone = 64;
inline constexpr int kMostInStep = 256;

// Workers that are slowed down on purpose, by the very times that a live run sleeps (common/delays.h).
struct Delays {
  std::vector<double> slowness;  // by worker: its computing takes so many times as long; missing: 1
  TimeDistribution jitter;       // before a step's computing
  uint64_t seed = 0;

  bool any() const { return !slowness.empty() || !jitter.is_zero(); }
  double SlownessOf(int worker) const {
    return static_cast<size_t>(worker) < slowness.size() ? slowness[static_cast<size_t>(worker)] : 1;
  }
  double JitterSeconds(int worker, int64_t step) const {
    return jitter.is_zero() ? 0 : DrawMs(jitter, seed, TimeUse::kJitter, worker, step) / 1e3;
  }
};

struct ServerRun {
  std::string consistency = "sync";  // or "async", "ssp:K", "backup:B"
  int workers = 1;
  int servers = 1;
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;  // false: no pull before all of a step is pushed
  bool align_steps =
      false;  // every step of all workers begins when the last of them has ended the one before
  double forward_s = 0, backward_s = 0;
  std::vector<double> bucket_bytes, ready_s;  // ready: since backward began
  double pushed_part = 1;  // of a bucket's bytes that its gradient has: 1/2 where it travels in 16 bits
  bool clips = false;      // no update before the whole gradient's norm is known; not with "async", "ssp:K"
  Delays delays;           // of at most kMostInStep workers
  // The first `slow_workers` compute `slowness` times as long.
  int slow_workers = 0;
  double slowness = 1;
  double jitter =
      0;  // coefficient of variation of a step's computing time, lognormal, every worker's its own
  uint64_t seed = 1;
  int warmup_steps = 0, steps = 0;  // per worker; 0: enough
  // For tests against queueing theory: the server's time for a push, and computing, are exponential.
  bool exponential = false;
  bool no_groups = false;  // for tests: every worker by itself
  int most_alone = kMostAlone;
};

struct ServerTime {
  double worker_steps_per_s = 0;  // of all workers together; dropped ones are not counted
  double dropped_share = 0;       // spare workers: of all steps
  // Mean, of a worker's step from its begin to its end: workers / worker_steps_per_s, but for align_steps,
  // where who is done early waits between its steps.
  double step_s = 0;
  double compute_s = 0;  // mean, all of these of a worker's step
  double exposed_s = 0;  // from the end of backward until all weights are there
  double busy_s = 0;     // at least one bucket is under way
  // Synchronous: from the end of backward until the last worker's, of those that count. Bounded staleness:
  // until the slowest is not too far behind any more.
  double wait_s = 0;
  // Updates, over buckets; below 0: not known, because the slowest workers are too slow beside the fastest to
  // be waited for.
  double staleness_mean = -1, staleness_max = -1;
  // Parts of the time that these work, as if always at full capacity. Of a card the busier direction; where
  // pushes and pulls are serial, both.
  double server_card = 0, worker_card = 0, fabric = 0, server_processor = 0;
  int simulated = 0;  // workers that were simulated one by one, or groups
};

// InvalidArgument: a consistency that is unknown, S servers beside fewer workers, more workers than
// kMostInStep where each of them has to be simulated: spare ones, delays, synchronous ones with jitter.
absl::StatusOr<ServerTime> SimulateServers(const ServerRun& run, const Cluster& cluster);

}  // namespace psring
