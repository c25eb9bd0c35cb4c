// The time of steps with parameter servers on a described network: simulates the Consistency that the servers
// run. Pure.
//
// A worker computes; the gradient of bucket b is ready at forward_s + ready_s[b]. It pushes its buckets one
// after another, 1/S of each to every server, and pulls weights the same way. A synchronous server adds while
// bytes arrive and updates after the last push; the other servers queue each push, add, update and answer.
// The next step starts when all weights have arrived. Cards, links within nodes and the fabric are shared by
// max-min fairness.
//
// Workers that do the same at the same time are one *group*, which is exact. If each push is an update by
// itself, workers are simulated one by one; above kMaxAlone, a sample of about that many represents all, and
// loads the shared resources as all would.
//
// With spare workers the job's single Admission decides, as in the live server: a worker announces the end of
// its backward pass and pushes only if its gradient is admitted; otherwise it pulls the newest weights and
// continues with their step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/simulator/cluster.h"
#include "experiments/simulator/compute_variation.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

inline constexpr int kMaxAlone = 64;
inline constexpr int kMaxInStep = 256;

struct ServerRun {
  std::string consistency = "sync";  // or "async", "ssp:K", "backup:B"
  int workers = 1;
  int servers = 1;
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;     // false: serial, as in ps_server/modes.md
  bool align_steps = false;  // all workers start a step when the last one has finished the previous step
  double forward_s = 0, backward_s = 0;
  std::vector<double> bucket_bytes, ready_s;  // ready: since backward began
  double pushed_part = 1;                     // bytes of a pushed gradient, relative to float32
  bool clips = false;  // no update before the norm of the whole gradient is known; not with "async", "ssp:K"
  Delays delays;       // at most kMaxInStep workers
  // The computing times of the first `slow_workers` are multiplied by `slowness`.
  int slow_workers = 0;
  double slowness = 1;
  double jitter = 0;  // coefficient of variation of the computing time, lognormal, independent per worker
  ComputeVariation variation;        // of the computing time, drawn for each worker and step
  std::vector<double> after_pull_s;  // by bucket: from the arrival of weights until the worker can use them
  uint64_t seed = 1;
  int warmup_steps = 0, steps = 0;  // per worker; steps 0: both are chosen
  // For tests against queueing theory: service and computing times are exponentially distributed.
  bool exponential = false;
  bool no_groups = false;  // for tests: each worker is simulated
  int most_alone = kMaxAlone;
};

struct ServerTime {
  double worker_steps_per_s = 0;  // sum over workers, without dropped steps
  double dropped_share = 0;       // spare workers: dropped steps / all steps
  double most_share = 0;          // of all steps, without dropped ones: of the worker with the most
  // Mean time from the start to the end of a worker's step. Equals workers / worker_steps_per_s, except with
  // align_steps, where early workers wait between steps.
  double step_s = 0;
  double compute_s = 0;  // this and the next three: means over workers' steps
  double exposed_s = 0;  // from the end of backward until all weights have arrived
  double busy_s = 0;     // at least one bucket in flight
  // Synchronous: from the end of backward until it ends on the last counted worker. Bounded staleness: until
  // the slowest worker is within the bound.
  double wait_s = 0;
  // In updates, over buckets; below 0: unknown, because the slowest workers took too few steps.
  double staleness_mean = -1, staleness_max = -1;
  // Utilization. Cards: of the busier direction, or the sum of both if pushes and pulls are serial.
  double server_card = 0, worker_card = 0, fabric = 0, server_processor = 0;
  int simulated = 0;  // number of groups simulated
};

// InvalidArgument: an unknown consistency, invalid counts, or more than kMaxInStep workers if each one must
// be simulated (spare workers, delays, synchronous servers with jitter).
absl::StatusOr<ServerTime> SimulateServers(const ServerRun& run, const Cluster& cluster);

}  // namespace psring
