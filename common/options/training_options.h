// The flags of a training run, the same for `trainer`, `psring train` and `psring compare`: one table, so
// that names, defaults, help and checks cannot drift apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace psring {

inline constexpr int kMostServers = 64;

struct TrainingOptions {
  std::string strategy = "single";
  std::string model = "mlp";
  int width = 0;                       // of each hidden layer; 0: the model's own
  std::string workload;                // recorded, replayed in the model's place; empty: none
  double compute_speedup = 1;          // of a workload
  std::string data = "fashion-mnist";  // fashion-mnist, mnist (both idx files), synthetic
  std::string data_dir;                // where the four idx files are; empty: where Debian puts them
  std::string device = "auto";
  bool oversubscribe = false;         // ranks may share a GPU
  int threads = 1;                    // cores an op may use, per worker
  int ranks_per_process = 1;          // each a thread with a device and a replica of its own
  std::string precision = "float32";  // float32, tf32, bfloat16: of forward and backward

  // Budget: at most one is not 0. Samples are counted over all workers.
  int64_t steps = 0;  // per worker, measured ones; --warmup_steps come before
  int64_t samples = 0;
  double epochs = 0;  // 1 where none is given
  int64_t warmup_steps = 0;

  bool cuda_graph = false;         // forward and backward, or whole steps, recorded and repeated
  int batch = 128;                 // per worker
  int micro_batches = 1;           // single only
  int replicas = 1;                // dp only: devices in one process (--workers)
  int accumulate = 1;              // batches of a worker that are added up before one update
  std::string drop_last = "true";  // true, false: of an epoch's last batch where it is short
  std::string optimizer = "momentum";
  double lr = 0;                      // 0: the model's default
  double momentum = -1;               // below 0: the strategy's default
  std::string schedule = "constant";  // constant, linear
  double warmup_epochs = 0;           // of the learning rate
  bool linear_scaling = false;
  double clip_norm = 0;  // of the mean gradient; 0: not clipped. Synchronous strategies
  double bucket_mb = 25;
  uint64_t seed = 1;
  int64_t eval_every = 0;  // steps; 0: at the end only
  bool evaluate = true;
  int64_t validation = 0;       // training samples that are held out
  std::string score = "test";   // test, validation: what evaluations are of
  bool check_replicas = false;  // hash the weights after every step
  bool align_steps = false;     // all ranks begin every step together

  std::string backend;             // native, gloo, mpi, nccl; empty: the strategy's
  std::string transport = "auto";  // auto, tcp, shm: of collectives and of a parameter server's payload

  std::string ps_schedule = "pipelined";   // serial, pipelined
  int servers = 0;                         // 0: 1, or one a worker where they are colocated
  std::string server_placement = "rank0";  // rank0, dedicated, colocated
  bool deterministic = false;              // the server adds in rank order
  std::string staleness_lr = "none";       // none, inverse; asynchronous strategies
  std::string wire = "float32";            // of gradients on their way: float32, bfloat16, float16
  std::string straggler = "none";          // "1:3,2:1.5": workers that are slowed down (delays.h)
  std::string jitter_ms = "none";          // a random delay a step and worker (delays.h)
  double timeout_s = 60;
  std::string on_worker_loss;             // stop, continue; empty: synchronous stop, asynchronous continue
  double worker_timeout_s = 1;            // a worker whose connection broke may come back within
  std::string reject_nonfinite = "true";  // true, false
  int staging_mb = 256;                   // of a server, for asynchronous pushes on their way

  std::string checkpoint_dir;    // psring: empty means beside the run's records, where there are any
  int64_t checkpoint_every = 0;  // steps
  int checkpoint_keep = 2;
  std::string resume;    // a checkpoint, a folder of them, "latest"; empty: from the beginning
  int max_restarts = 0;  // of the job after a death, by psring

  std::string clock = "wall";       // wall, virtual
  std::string compute_ms;           // virtual: of a step of an undisturbed worker; empty: measured by psring
  std::string network_ms = "none";  // virtual: of one gradient, or one set of weights, on a worker's link
  std::string serve_ms = "none";    // virtual: the server's work for one push
};

// The samples of one worker behind one gradient that it gives away: --batch times --accumulate.
int64_t WorkerBatch(const TrainingOptions& options);

// Whether checkpoints of training are asked for.
bool Checkpoints(const TrainingOptions& options);

// Whether psring starts a parameter server that died anew by itself, to go on with the workers that wait for
// it; else the whole job: aligned steps, backup workers of several servers. `servers`: how many there are.
bool ServerReturns(const TrainingOptions& options, int servers);

// InvalidArgument names a flag of checkpoints or of lost workers that does not go together with another: with
// several servers of backup workers (`servers`; 0 where there is none), a virtual clock, or clipping.
absl::Status CheckRecovery(const TrainingOptions& options, int servers);

// The first flag given that only strategies with a parameter server understand; null: none is. Those flags as
// if they had not been given.
const char* ServerFlagGiven(const TrainingOptions& options);
void LeaveServersOut(TrainingOptions& options);

// How many parameter servers share the parameters, where a strategy has any.
int ServersOf(const TrainingOptions& options, int workers);

// Adds the flags above to `app`, grouped, with their help and checks. `skip` names those ("--batch") that the
// caller adds itself, because it reads a sweep there.
void AddTrainingFlags(CLI::App& app, TrainingOptions& options, const std::vector<std::string>& skip = {});

// Where a workload is given: what it settles (the batch, that nothing is evaluated, plain SGD unless another
// rule is asked for). Errors: no such workload, a bad file, flags that contradict it, or that do nothing
// without one. May be repeated.
absl::Status ApplyWorkload(TrainingOptions& options);

// The flags that reproduce `options`, for a child process. Those at their default are left out.
std::vector<std::string> TrainingArguments(const TrainingOptions& options);

// The options that such flags stand for. InvalidArgument, in one line, where one is unknown, has a bad value
// or is given twice.
absl::StatusOr<TrainingOptions> TrainingOptionsOf(const std::vector<std::string>& arguments);

// Checks what can be checked without the data, the model table or the machine. One line, with the flag's name
// and what to do.
absl::Status ValidateTrainingOptions(const TrainingOptions& options);

}  // namespace psring
