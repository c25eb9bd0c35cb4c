// The flags of a training run, shared by `trainer`, `psring train` and `psring compare`. One table
// (training_flags.cc) defines names, help and checks; defaults are here.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/context_parallel.h"

namespace CLI {
class App;
}

namespace psring {

inline constexpr int kMaxServers = 64;
// The largest --steps, --samples and other such counts, and --epochs. Products with workers and samples fit
// into 64 bits.
inline constexpr int64_t kMaxCount = 1'000'000'000'000'000;
inline constexpr double kMaxEpochs = 1e9;

struct TrainingOptions {
  std::string strategy = "single";
  std::string model = "mlp";
  int layers = 0, width = 0, heads = 0, context = 0;  // 0: the model's
  double dropout = 0;
  std::string workload;        // replayed instead of training a model; empty: none
  double compute_speedup = 1;  // of the workload
  std::string data;            // empty: the model's own, which ApplyModel (model_table.h) sets
  std::string data_dir;        // empty: where Debian installs the data
  std::string text;            // empty: the King James Bible
  bool reads_text() const { return data == "text" || data == "tokens"; }
  std::string device = "auto";
  bool oversubscribe = false;
  std::string memory;  // "2GB": what a worker may need at most; empty: what is free; "none": all it needs
  int threads = 1;
  int ranks_per_process = 1;
  std::string precision = "float32";

  // The length: at most one is not 0; if all are, 1 epoch. Samples are counted over all workers.
  int64_t steps = 0;  // measured, per worker
  int64_t samples = 0;
  double epochs = 0;
  int64_t warmup_steps = 0;  // before the measured ones

  bool cuda_graph = false;
  bool recompute = false;
  int batch = 128;
  int reference_workers = 1;  // single only
  int replicas = 1;           // data-parallel only: devices in one process (--workers); not a flag
  // psring's --global_batch, from which it sets `batch` for each number of workers; 0: none. Not a flag.
  int64_t global_batch = 0;
  // psring's --scale: processes run this many times slower, and psring divides all times by it. Not a flag.
  double time_scale = 1;
  int micro_batches = 1;

  int pp = 1;                      // ranks of a pipeline: parts into which each replica of the model is cut
  int tp = 1;                      // ranks that divide the matrices of each replica
  bool sequence_parallel = false;  // and, between these, the tokens of a batch
  int cp = 1;                      // ranks that divide its sequences
  std::string context_parallel = kDefaultContextParallel.name;  // of --cp: a name of context_parallel.h
  std::string program = "1f1b";                                 // a name of program_rows.h
  std::string cuts;        // "3,6": the layers before which the model is cut; empty: balanced
  std::string rank_order;  // see Mesh; empty: "tp,cp,dp,pp"
  int copy_streams = 2;    // 1: a rank's messages are on one lane; 2: on one for each end of a channel

  std::string reshard = "forward";  // fsdp: when gathered weights are released: forward, never
  int dp_shard = 0;                 // replicas that have one copy of sharded state together; 0: all
  std::string drop_last = "true";
  std::string optimizer;  // empty: the model's
  double lr = 0;          // 0: the model's
  double momentum = -1;   // below 0: the strategy's
  std::string schedule = "constant";
  double weight_decay = .1;  // AdamW's
  double warmup_epochs = 0;
  bool linear_scaling = false;
  double clip_norm = 0;  // 0: no clipping
  double bucket_mb = 25;
  bool sync_batch_norm = false;
  std::string broadcast_buffers = "true";
  uint64_t seed = 1;
  int64_t eval_every = 0;  // steps; 0: only at the end
  bool evaluate = true;
  int64_t validation = 0;
  std::string score = "test";
  bool check_replicas = false;
  bool align_steps = false;

  std::string backend;  // empty: the strategy's
  std::string transport = "auto";
  std::string wire = "float32";
  std::string tls;  // empty: connections are not encrypted

  std::string ps_schedule = "pipelined";
  std::string server_wire = "grpc";  // what carries payload that is not in shared memory: grpc, stream
  int servers = 0;                   // with --pp of a position; 0: 1, or one per worker if colocated
  std::string server_placement;      // empty: see PlaceServers (server_arguments.h)
  bool deterministic = false;
  bool local_aggregation = false;
  std::string staleness_lr = "none";
  std::string on_worker_loss;  // empty: synchronous strategies stop, asynchronous ones continue
  double worker_timeout_s = 1;
  std::string reject_nonfinite = "true";
  int staging_mb = 256;

  std::string straggler = "none";  // delays.h
  std::string jitter_ms = "none";  // delays.h
  double timeout_s = 60;

  std::string checkpoint_dir;    // psring: if empty, beside the run's records
  int64_t checkpoint_every = 0;  // steps
  int checkpoint_keep = 2;
  std::string resume;  // empty: from the beginning
  int max_restarts = 0;

  std::string clock = "wall";
  // For the virtual clock.
  std::string compute_ms;  // empty: psring measures it
  std::string network_ms = "none";
  std::string serve_ms = "none";

  bool operator==(const TrainingOptions&) const = default;
};

// The samples of one worker, or with --pp of one replica, in one gradient that it sends: --batch times
// --micro_batches.
int64_t WorkerBatch(const TrainingOptions& options);

// Whether checkpoints are requested.
bool Checkpoints(const TrainingOptions& options);

// Whether psring restarts only the parameter server if one of the `servers` dies, while workers wait. False:
// the job restarts (with --align_steps, --local_aggregation, --pp or --tp, or with several servers of
// ps-backup), or has no restarts or servers.
bool ServerReturns(const TrainingOptions& options, int servers);

// InvalidArgument names a conflict of flags about checkpoints, restarts or lost workers. `servers`: 0 if the
// strategy has none.
absl::Status CheckRecovery(const TrainingOptions& options, int servers);

// The first flag set that only strategies with a parameter server use; null: none.
const char* ServerFlagGiven(const TrainingOptions& options);
// Resets those flags to their defaults.
void LeaveServersOut(TrainingOptions& options);

// The ranks that compute the samples of a replica together: more than one with --pp, --tp or --cp.
inline int ReplicaRanks(const TrainingOptions& options) {
  const int64_t parts = std::min<int64_t>(int64_t{options.pp} * options.tp, INT_MAX);
  return static_cast<int>(std::min<int64_t>(parts * options.cp, INT_MAX));
}

// Resets --pp, --tp, --cp and the flags that need them.
void LeavePipelineOut(TrainingOptions& options);

// The number of parameter servers of a strategy that has them. With --pp or --tp each rank of a replica has
// as many servers of its own, which are those of the ranks with the same part of the model: position 0 comes
// first, and within a position share 0.
int ServersOf(const TrainingOptions& options, int workers);

// Adds the flags to `app`, grouped, with their help and checks; AddModelsAndData (model_table.h) completes
// them. `skip` names flags ("--batch") that the caller adds itself, because it accepts several values.
void AddTrainingFlags(CLI::App& app, TrainingOptions& options, const std::vector<std::string>& skip = {});

// Sets what --workload determines: the batch, no evaluation, and plain SGD by default. InvalidArgument: no
// such workload, an invalid file, flags that contradict it, or that have no effect without one. Idempotent.
absl::Status ApplyWorkload(TrainingOptions& options);

// The flags that reproduce `options`, for a child process; without defaults.
std::vector<std::string> TrainingArguments(const TrainingOptions& options);

// The inverse. InvalidArgument, in one line: a flag is unknown, has an invalid value or is given twice.
absl::StatusOr<TrainingOptions> TrainingOptionsOf(const std::vector<std::string>& arguments);

// Checks everything that does not depend on the data, the models or the machine. InvalidArgument, in one
// line, names the flag and what to do.
absl::Status ValidateTrainingOptions(const TrainingOptions& options);
// The part of it that checks each flag's value by itself.
absl::Status CheckFlagValues(const TrainingOptions& options);

}  // namespace psring
