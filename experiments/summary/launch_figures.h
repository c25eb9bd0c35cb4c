// From the records of one launch to its figures. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "experiments/plan/plan.h"

namespace psring {

// What the links of a virtual cluster counted during a launch, a step (warm-up included), over all nodes.
struct NetworkFigures {
  double retransmitted_segments = 0, timeouts = 0;  // TCP's
  double queue_drops = 0;                           // packets, of the switch's ports
  // *Derived*: of the node that had most, in ms: those segments at the link's rate, and the shortest
  // time-out.
  double again_ms = 0;
};

// What one launch of one configuration left behind.
struct RunRecords {
  std::vector<RankResult> ranks;               // by rank
  std::vector<std::vector<StepRecord>> steps;  // by rank
  std::vector<ServerResult> servers;
  std::optional<NetworkFigures> network;
};

// A rank's waiting for its peers in one step, in ms, *derived*: over the buckets, the time from our begin
// until the last rank's begin, as far as our exchange lasted that long. Overlapping waits count once. `steps`
// holds this step of every rank; clocks are one, because the ranks stand on one host.
double WaitMs(const std::vector<const StepRecord*>& steps, int rank);

// One worker's figures in one launch. Warm-up steps count for staleness and dropped gradients only.
struct WorkerFigures {
  int rank = 0;  // one that was lost has no figures
  double steps = 0;
  double step_ms = 0, compute_ms = 0, delay_ms = 0, exposed_comm_ms = 0, wait_ms = 0;  // of a mean step
  double waited_s = 0;                                                                 // in all
  std::optional<double> staleness_mean;
  std::optional<double> staleness_theory;  // asynchronous: sum over the others of their rate over its own
  std::optional<int64_t> staleness_max;
  double dropped_gradients = 0;
};
// The figures of one launch. Warm-up steps count for the staleness only. Bytes are per step and worker.
struct RunFigures {
  int64_t steps = 0;  // measured, per worker
  int64_t samples =
      0;              // measured, over all workers; those of dropped gradients are in no update, and not here
  double wall_s = 0;  // of the measured steps: first begin to last end over all workers
  double samples_per_s = 0;
  double step_ms = 0, compute_ms = 0, comm_busy_ms = 0, exposed_comm_ms = 0;  // means over ranks and steps
  std::optional<double> wait_ms;                                              // strategies that wait
  // Means over ranks and steps; empty: not known, as in records of earlier versions.
  std::optional<double> computed_ms;  // from a step's begin until its whole gradient was handed over
  std::optional<double> update_ms, run_delay_ms, probe_ms;  // as in RankResult
  double waited_ms = 0;                                     // of a step, whatever its rule of waiting
  std::vector<double> bucket_ready_ms;                      // by bucket: since the step's begin
  double late_ms = 0;  // of a step: the slowest rank's first bucket, after the mean of all ranks'
  std::optional<NetworkFigures> network;
  std::vector<double> every_step_ms;
  double payload_tx_bytes = 0, payload_rx_bytes = 0;
  std::optional<double> wire_tx_bytes;
  std::optional<double> server_payload_bytes;  // in and out, of the server that has most
  std::vector<double> each_server_payload_bytes;
  std::optional<double> staleness_mean;
  std::optional<int64_t> staleness_max;
  std::optional<double> dropped_gradients;  // backup workers: of the whole launch, warm-up included
  std::optional<double> dropped_share;      // of all gradients that were computed
  std::vector<WorkerFigures> workers;       // by rank
  std::vector<double> staleness_histogram;  // index: staleness; pushes of a bucket
  double loss = 0;
  std::optional<double> test_accuracy;
  std::optional<double> time_to_target_s;  // wall time of training, to the first evaluation at the target
  std::optional<bool> replicas_equal;
  double worker_peak_memory_mb = 0;
  std::optional<double> server_peak_memory_mb;  // of the server that has most
  double foreign_cpu_pct = 0;
  int gpus_shared = 0;    // all ranks stand on so few GPUs that some share one; 0: none does
  std::string incidents;  // workers that were lost, servers that were started anew; mostly empty
};

// Time to the first point of a curve with at least `target`; empty where there is none.
std::optional<double> TimeToTarget(const std::vector<CurvePoint>& curve, double target);

// Errors: a rank or server without a result, a rank without measured steps.
absl::StatusOr<RunFigures> FiguresOf(const Configuration& configuration, const RunRecords& records);

}  // namespace psring
