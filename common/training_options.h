// The flags of a training run, the same for `trainer`, `psring train` and `psring compare`: one table, so
// that names, defaults, help and checks cannot drift apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace psring {

struct TrainingOptions {
  std::string strategy = "single";
  std::string model = "mlp";
  std::string data = "fashion-mnist";  // fashion-mnist, mnist (both idx files), synthetic
  std::string data_dir;                // where the four idx files are; empty: where Debian puts them
  std::string device = "auto";
  int threads = 1;  // cores an op may use, per worker

  // Budget: at most one is not 0. Samples are counted over all workers.
  int64_t steps = 0;  // per worker, measured ones; --warmup_steps come before
  int64_t samples = 0;
  double epochs = 0;  // 1 where none is given
  int64_t warmup_steps = 0;

  int batch = 128;        // per worker
  int micro_batches = 1;  // single only
  std::string optimizer = "momentum";
  double lr = 0;                      // 0: the model's default
  double momentum = -1;               // below 0: the strategy's default
  std::string schedule = "constant";  // constant, linear
  double warmup_epochs = 0;           // of the learning rate
  bool linear_scaling = false;
  double bucket_mb = 25;
  uint64_t seed = 1;
  int64_t eval_every = 0;  // steps; 0: at the end only
  bool evaluate = true;
  bool check_replicas = false;  // hash the weights after every step

  std::string backend;          // native, gloo, mpi, nccl; empty: the strategy's
  std::string fabric = "auto";  // auto, tcp, shm: what collectives move over

  std::string ps_schedule = "pipelined";   // serial, pipelined
  std::string payload = "auto";            // of a parameter server: auto, grpc, shm
  std::string server_placement = "rank0";  // rank0, dedicated
  bool deterministic = false;              // the server adds in rank order
  double timeout_s = 60;
  std::string on_worker_loss;             // stop, continue; empty: synchronous stop, asynchronous continue
  double worker_timeout_s = 1;            // a worker whose connection broke may come back within
  std::string reject_nonfinite = "true";  // true, false
  std::string checkpoint_dir;             // of the server; psring: empty means beside the run's records
  int64_t checkpoint_every = 0;           // steps
  int max_restarts = 0;                   // of a server that died, by psring
};

// How a parameter server's payload travels: --payload, or what --fabric says of all wires ("tcp": "grpc").
std::string PayloadOf(const TrainingOptions& options);

// Whether the server leaves checkpoints from which it goes on after its death.
bool Checkpoints(const TrainingOptions& options);

// Adds the flags above to `app`, grouped, with their help and checks. `skip` names those ("--batch") that the
// caller adds itself, because it reads a sweep there.
void AddTrainingFlags(CLI::App& app, TrainingOptions& options, const std::vector<std::string>& skip = {});

// The flags that reproduce `options`, for a child process. Those at their default are left out.
std::vector<std::string> TrainingArguments(const TrainingOptions& options);

// Checks what can be checked without the data, the model table or the machine. One line, with the flag's name
// and what to do.
absl::Status ValidateTrainingOptions(const TrainingOptions& options);

}  // namespace psring
