// The records of a run's processes: trainer and server write them, experiments reads them. A record
// folder contains, for each rank r,
//   steps-rank<r>.jsonl   a StepRecord per line
//   trace-rank<r>.json    Chrome trace
//   result-rank<r>.json   a RankResult, written last: a rank without one has failed
// and result-server<s>.json, a ServerResult, for each server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// Times on the machine's monotonic clock, in ns.
struct BucketRecord {
  int bucket = 0;
  int64_t ready_ns = 0;  // its gradient is complete
  int64_t begin_ns = 0;  // its communication starts: ready, and the previous bucket's is done
  int64_t end_ns = 0;    // its result is in place
  // Parameter servers only. Each server has its own staleness: the maximum, and the sum over `pushes` pushes.
  int64_t staleness = -1;
  int64_t staleness_sum = 0;
  int64_t pushes = 1;
};

struct StepRecord {
  int rank = 0;
  int64_t step = 0;  // from 0
  bool warmup = false;
  int64_t samples = 0;   // of this rank; of a pipeline, counted by the rank of the first stage
  bool dropped = false;  // backup workers: the gradient came too late for every update
  int64_t begin_ns = 0;
  double step_ms = 0;
  double compute_ms = 0;       // forward + backward, including sleeps between them
  double delay_ms = 0;         // part of it: sleeps for --straggler and --jitter_ms
  double comm_busy_ms = 0;     // at least one bucket in flight
  double exposed_comm_ms = 0;  // the compute stream waits for synchronization
  uint64_t payload_tx_bytes = 0;
  uint64_t payload_rx_bytes = 0;
  // Of payload_tx_bytes: to other stages of its replica, for the sums of divided matrices, and to the ranks
  // of its sequences, beside their gradients; the rest is to other replicas, and for gradients.
  uint64_t stage_tx_bytes = 0, tensor_tx_bytes = 0, sequence_tx_bytes = 0;
  double loss = 0;           // mean over this rank's samples, or those of its pipeline
  std::string weights_hash;  // after the step; only if requested (--check_replicas)
  std::vector<BucketRecord> buckets;
  // A pipeline's rank: it had nothing to compute, because other stages had not sent anything yet, or it had
  // finished before them. And how long the activations and the gradients of activations that it received were
  // on their way, means over micro-batches.
  double bubble_ms = 0, activation_message_ms = 0, gradient_message_ms = 0;
};

// One evaluation of the weights at some point of training.
struct CurvePoint {
  int64_t samples = 0;  // trained on by all workers before it
  int64_t updates = 0;
  double wall_s = 0;      // of training, without evaluation
  double train_loss = 0;  // mean since the previous point
  double test_loss = 0;
  double test_accuracy = 0;
};

// What PyTorch's DistributedDataParallel logs about itself (get_ddp_logging_data), for one rank.
struct DdpFigures {
  std::vector<int64_t> bucket_bytes;
  // All-reduces: DDP's bucket_bytes follow the declared order of parameters, and after its first step buckets
  // are planned again. psring uses the rebuilt ones from the beginning.
  bool has_rebuilt_buckets = false;
  std::vector<int64_t> rebuilt_bucket_bytes;
  std::vector<std::string> ready_order;  // tensors by name, in the order in which backward completes them
  // Means over the measured steps.
  double forward_ms = 0;
  double backward_ms = 0;
  double comm_ms = 0;     // at least one bucket in flight
  double overlap_ms = 0;  // part of it: during backward
};

// The strategy data-parallel: what is transferred between device 0 and the other replicas in one step, by
// kind. Copies and additions run on device 0 one after the other while all others wait; only computation runs
// on all at once.
struct DataParallelFigures {
  int64_t replicas = 0;                                        // 0: another strategy
  double inputs_bytes = 0, inputs_ms = 0;                      // from device 0
  double weights_bytes = 0, weights_ms = 0;                    // from device 0
  double output_gradients_bytes = 0, output_gradients_ms = 0;  // from device 0
  double outputs_bytes = 0, outputs_ms = 0;                    // to device 0
  double gradients_bytes = 0, gradients_ms = 0;                // to device 0, where they are added
  double loss_ms = 0;                                          // on device 0
  double update_ms = 0;                                        // on device 0
  double compute_ms = 0;                                       // of the slowest replica
  double device0_extra_mb = 0;  // derived: the whole batch, all outputs, the optimizer's state

  double moved_ms() const { return inputs_ms + weights_ms + output_gradients_ms + outputs_ms + gradients_ms; }
  double from_device0_bytes() const { return inputs_bytes + weights_bytes + output_gradients_bytes; }
  double to_device0_bytes() const { return outputs_bytes + gradients_bytes; }
  // The time in which only device 0 works.
  double device0_alone_ms() const { return moved_ms() + loss_ms + update_ms; }
};

// The exchange of rows of tables, means over the measured steps, in bytes. 0: none.
struct RowFigures {
  double gathered_bytes = 0;  // this rank's part of all-gathers
  double reduced_bytes = 0;   // of tables that were all-reduced as a whole
  double pushed_bytes = 0;    // to servers, numbers and gradients
  double asked_bytes = 0;     // to servers, numbers of the rows that are pulled
  double pulled_bytes = 0;    // from servers

  double all() const { return gathered_bytes + reduced_bytes + pushed_bytes + asked_bytes + pulled_bytes; }
  // Adds one of `count` values of which this becomes the mean.
  void AddToMean(const RowFigures& value, double count) {
    gathered_bytes += value.gathered_bytes / count;
    reduced_bytes += value.reduced_bytes / count;
    pushed_bytes += value.pushed_bytes / count;
    asked_bytes += value.asked_bytes / count;
    pulled_bytes += value.pulled_bytes / count;
  }
};

// The memory of a rank's device by class, in MiB, of what training allocates itself. Not in it: what
// libraries allocate, the data set, buffers of transports, copies of the weights for evaluation.
struct MemoryFigures {
  double params_mb = 0;       // weights, and statistics that are not trained
  double grads_mb = 0;        // with those of single micro-batches
  double optimizer_mb = 0;    // its state; 0 also if a server has it
  double activations_mb = 0;  // of all micro-batches in flight, with their samples and gradients

  double total_mb() const { return params_mb + grads_mb + optimizer_mb + activations_mb; }
};

struct RankResult {
  int rank = 0;
  int world_size = 1;
  std::string strategy, device, ops, backend, algorithm, transport, payload, placement;
  int64_t parameters = 0;
  int64_t global_batch = 0;
  int64_t steps = 0;    // measured ones
  int64_t samples = 0;  // of this rank, in measured steps whose gradient was not dropped
  double wall_s = 0;    // of the measured steps
  std::vector<int64_t> bucket_elements;
  double final_loss = 0;  // mean over the last 10% of its steps
  std::string weights_hash;
  int64_t pushes = 0;  // parameter servers: exchanges of this rank, one per bucket and server, all steps
  int64_t staleness_sum = 0;
  int64_t staleness_max = 0;
  int64_t dropped_gradients = 0;  // backup workers: steps of this rank that are in no update
  double peak_memory_mb = 0;      // MiB; of its process, divided evenly among the ranks in it
  DdpFigures ddp;
  DataParallelFigures data_parallel;  // means over the measured steps
  RowFigures rows;
  int64_t wire_tx_bytes = -1;  // by the interface's counter, in the measured steps; -1: not counted
  // Means over the measured steps; below 0: unknown, as in records of earlier versions.
  double computed_ms = -1;   // from the step's begin until its complete gradient was handed over
  double update_ms = -1;     // the optimizer's, on this rank
  double run_delay_ms = -1;  // its process's threads were runnable but waited for a processor: the sum over
                             // threads, divided evenly among the ranks in it
  double probe_ms = -1;      // what recording cost: spans, counters, the step's line
  std::vector<CurvePoint> curve;  // the rank that evaluates
  // What it trained, on rank 0 (TrainingArguments); empty on the others and in records of earlier versions.
  std::vector<std::string> flags;
  std::string optimizer;
  double lr = 0;
  // What carried its payload (wires.h); empty: nothing was sent, or a record of an earlier version.
  std::vector<std::string> wires;
  std::string host;  // equal for ranks of one machine, different on different ones; empty: unknown
  // What it allocated, and what was predicted before. All 0: unknown, as with tables, with replicas in one
  // process (data-parallel), and in records of earlier versions.
  MemoryFigures memory, predicted_memory;
  int64_t gathered_elements = 0;  // of weights, in a step (fsdp)
  int64_t tied_elements = 0;      // of tensors that its stage shares with another one (a pipeline's ends)
};

struct ServerResult {
  int server = 0;
  int64_t pushes = 0;
  uint64_t payload_rx_bytes = 0;
  uint64_t payload_tx_bytes = 0;
  std::vector<int64_t> staleness_histogram;  // index: staleness
  int64_t dropped_gradients = 0;             // backup workers: of whole steps, over all workers
  int64_t restarts = 0;                      // restarts from a checkpoint after the server's death
  int64_t lost_updates = 0;                  // asynchronous: pushes of a bucket that were lost in a restart
  std::vector<int64_t> lost_workers;         // in the order of their loss
  std::vector<int64_t> lost_at_step;         // the step at which each was lost
  double peak_memory_mb = 0;
};

// One line each, without a line break. A value that is not a number (a diverged loss) is null, and read as
// NaN. Reading: InvalidArgument names the field that is missing or invalid; fields of later versions are
// ignored.
std::string ToJson(const StepRecord& record);
absl::StatusOr<StepRecord> StepRecordFromJson(const std::string& line);
std::string ToJson(const DdpFigures& figures);
std::string ToJson(const DataParallelFigures& figures);
std::string ToJson(const RankResult& result);
absl::StatusOr<RankResult> RankResultFromJson(const std::string& text);
std::string ToJson(const ServerResult& result);
absl::StatusOr<ServerResult> ServerResultFromJson(const std::string& text);

// The peak memory of this process, in MiB (VmHWM).
double PeakMemoryMb();

}  // namespace psring
