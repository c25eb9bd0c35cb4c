// Computes the figures of one launch from its records. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/measure/records.h"
#include "experiments/design/plan.h"

namespace psring {

// Counters of a virtual cluster's links per step (warm-up included), summed over all nodes.
struct NetworkFigures {
  double retransmitted_segments = 0, timeouts = 0;  // TCP
  double queue_drops = 0;                           // packets dropped by the switch's ports
  double again_ms = 0;                              // *derived*: RetransmissionMs
};

// The records of one launch of one configuration.
struct RunRecords {
  std::vector<RankResult> ranks;               // by rank
  std::vector<std::vector<StepRecord>> steps;  // by rank
  std::vector<ServerResult> servers;
  std::optional<NetworkFigures> network;
  bool restarted = false;      // and a rank had nothing left to train
  double foreign_cpu_pct = 0;  // of the processors, used by other programs
  int other_psring = 0;  // process ID of another psring that measured at the same time; 0: there was none
};

// The mean of a field over the measured steps of all `ranks`, or of one; 0 if there are none.
template <typename T>
double MeanOf(absl::Span<const std::vector<StepRecord>> ranks, T StepRecord::*field) {
  double sum = 0, count = 0;
  for (const std::vector<StepRecord>& steps : ranks) {
    for (const StepRecord& step : steps) {
      if (step.warmup) continue;
      sum += step.*field;
      ++count;
    }
  }
  return sum / std::max(1.0, count);
}
template <typename T>
double MeanOf(const std::vector<StepRecord>& steps, T StepRecord::*field) {
  return MeanOf(absl::MakeConstSpan(&steps, 1), field);
}

// Rank 0's result with the mean of all ranks' rows of tables.
RankResult SampleOf(const RunRecords& records);

// One worker's figures in one launch. Warm-up steps count only for staleness and dropped gradients. Lost
// workers have no figures.
struct WorkerFigures {
  int rank = 0;
  double steps = 0;
  double samples_per_s = 0;  // from the start of its first measured step to the end of its last
  double step_ms = 0, compute_ms = 0, delay_ms = 0, comm_busy_ms = 0, exposed_comm_ms = 0,
         wait_ms = 0;                                         // means over steps
  double activation_message_ms = 0, gradient_message_ms = 0;  // of a pipeline: see StepRecord
  double forward_share = 0;                                   // of computing; 0: not known
  double waited_s = 0;                                        // in total
  std::optional<double> staleness_mean;
  std::optional<double> staleness_theory;  // asynchronous: sum of the others' rates / its own rate
  std::optional<int64_t> staleness_max;
  double dropped_gradients = 0;
};
// The memory of a rank by class: what it allocated, and what was predicted before.
struct RankMemory {
  MemoryFigures measured, predicted;
};
// The sum of all classes on the rank with the most, in MiB; 0: unknown.
double MostMemoryMb(const std::vector<RankMemory>& ranks, MemoryFigures RankMemory::*which);

// The figures of one launch. Warm-up steps count only for staleness. Bytes are per step and worker.
struct RunFigures {
  int64_t steps = 0;            // measured, per worker
  int64_t samples = 0;          // measured, over all workers, without those of dropped gradients
  int64_t trained_samples = 0;  // in the weights at the end: with warm-up, and with those before --resume
  double wall_s = 0;  // from the start of the first measured step to the end of the last, over all workers
  double samples_per_s = 0;
  // Means over ranks and steps; of workers that take their steps from one total, means over steps, then over
  // ranks, weighted by their speeds.
  double step_ms = 0, compute_ms = 0, comm_busy_ms = 0, exposed_comm_ms = 0;
  std::optional<double> wait_ms;  // of strategies whose workers wait
  // Means over ranks and steps; empty: unknown, as in records of earlier versions.
  std::optional<double> computed_ms;  // from a step's start until its gradient was complete
  std::optional<double> update_ms, run_delay_ms, probe_ms;  // as in RankResult
  double waited_ms = 0;                                     // per step, by the strategy's waiting rule
  std::vector<double> bucket_ready_ms;                      // by bucket, from the step's start
  double late_ms = 0;  // per step: how much later than the mean the slowest rank's first bucket is ready
  std::optional<NetworkFigures> network;
  std::vector<double> every_step_ms;
  double payload_tx_bytes = 0, payload_rx_bytes = 0;
  // Of payload_tx_bytes, as in StepRecord.
  double stage_tx_bytes = 0, tensor_tx_bytes = 0, sequence_tx_bytes = 0;
  std::optional<double> wire_tx_bytes;
  std::optional<double> server_payload_bytes;  // in and out, of the busiest server
  std::vector<double> each_server_payload_bytes;
  std::optional<double> staleness_mean;
  std::optional<int64_t> staleness_max;
  std::optional<double> dropped_gradients;  // backup workers: of the whole launch, warm-up included
  std::optional<double> dropped_share;      // of all computed gradients
  // Pipelines: the part of a step in which a rank waits for other stages' computing, mean over ranks; and the
  // bytes of a micro-batch's activations between two stages, or without stages those that a rank sends for
  // the sums of divided matrices.
  std::optional<double> bubble_fraction, boundary_bytes;
  std::vector<WorkerFigures> workers;       // by rank
  std::vector<double> staleness_histogram;  // index: staleness; pushes of a bucket
  double loss = 0;
  std::optional<double> test_accuracy;
  std::optional<double> time_to_target_s;  // training time until the first evaluation at the target
  std::optional<bool> replicas_equal;
  double worker_peak_memory_mb = 0;
  std::optional<double> server_peak_memory_mb;  // of the largest server
  std::vector<RankMemory> memory;               // by rank; empty: unknown
  double foreign_cpu_pct = 0;
  int other_psring = 0;   // as in RunRecords
  int gpus_shared = 0;    // the number of GPUs if ranks share some; else 0
  std::string incidents;  // lost workers and restarted servers; usually empty
  // Of all ranks, as AddWires sorts them (row_queries.h). Empty: nothing was sent, or records of an earlier
  // version.
  std::vector<std::string> wires;
  int machines = 0;  // on which the ranks ran; 0: unknown, as in records of earlier versions
};

// Training time, in s, of the first point with at least `target`; empty: there is none.
std::optional<double> TimeToTarget(const std::vector<CurvePoint>& curve, double target);

// Part of FiguresOf: those of a pipeline, whose ranks have different stages, so that their buckets and the
// times at which they are ready are not comparable.
void AddPipelineFigures(const Configuration& configuration, const RunRecords& records, RunFigures& figures);
// How many buckets a server gets from each of its workers in a step.
size_t BucketsAt(const Configuration& configuration, const RunRecords& records, int server);

// DataLoss: a rank has no measured steps. OutOfRange: the training that --resume continues was finished.
absl::StatusOr<RunFigures> FiguresOf(const Configuration& configuration, const RunRecords& records);

// --scale K: a run whose links and replayed computing are K times slower, with all times divided by K.
//
// Divides all times in `records` by `scale`. Processor time for adding and copying was not slowed, so it
// is underestimated by a factor of `scale`.
void DivideTimes(double scale, RunRecords& records);
// Converts wires measured on links `scale` times slower to the wires that they represent.
Wires DivideTimes(double scale, Wires wires);

}  // namespace psring
