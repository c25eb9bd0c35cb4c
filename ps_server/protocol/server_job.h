// What a server must know to serve a training job. The first worker's is the reference; a worker whose job
// differs is rejected, with an error that names the field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/optimizer.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

struct ServerJob {
  int workers = 1;
  std::string consistency = "sync";  // sync, async, ssp:K, backup:B (consistency.h)
  bool deterministic = false;  // sync: add in worker order, so that the sum's bits do not depend on arrival
  bool serial = false;         // no weights leave before the step's whole gradient has arrived (modes.md)
  int server = 0;              // which of how many servers this one is (sharding.h)
  int servers = 1;
  // Synchronous modes, above 0: the norm to which the mean gradient over all parameters is clipped. No bucket
  // is updated or answered before the whole gradient has been added up.
  double clip_norm = 0;
  // Asynchronous modes: each push's rate is divided by max(1, its staleness) (Zhang, Gupta, Lian & Liu 2016,
  // "Staleness-aware Async-SGD for Distributed Deep Learning").
  bool staleness_lr = false;
  DType wire = DType::kFloat32;  // of gradients in messages; sums and answers are float32
  int64_t parameters = 0;
  std::vector<Bucket> buckets;
  // Whose rows are pulled and pushed (PsClient), and the seed of their initial values (InitialRow). Their
  // names and lookups are not sent. With several servers row r is on server r % servers.
  std::vector<Table> tables = {};
  uint64_t table_seed = 0;
  // Above 0: instead of these, worker 0 sends all rows after its Welcome: 1: their values, 1 + slots of the
  // optimizer: these too.
  int row_arrays = 0;
  OptimizerConfig optimizer;
  LrSchedule schedule;
  // Above 0: the job continues from a checkpoint of its workers, which contains this many steps of each
  // worker, and this many samples in total.
  int64_t start_step = 0;
  int64_t start_samples = 0;
  // Asynchronous modes: updates beyond `start_step` of each worker; fewer than there are workers.
  int start_beyond = 0;
};

// The payload of a worker's Join.
struct Joining {
  int worker = 0;
  ServerJob job;
  std::string memory;    // token of the memory that the worker shares; empty: none
  uint64_t payload = 0;  // number of its payload connection (wire/payload_streams.h); 0: none
  uint64_t session = 0;  // of one process's client; 0: it never joins again
  bool again = false;    // it has had a Welcome before, and its stream has broken since
  int64_t epoch = 0;     // the newest epoch of this server that the worker knows (common_step.h)
};

// InvalidArgument unless all numbers are finite, not negative and within the bounds of messages.h, and the
// buckets are numbered in order and cover every parameter exactly once. Does not bound the number of
// parameters (job_memory.h does).
absl::Status ValidateServerJob(const ServerJob& job);

// How the workers of a valid job wait.
WaitingRule RuleOf(const ServerJob& job);

// InvalidArgument names the first field in which `other`, the job of `worker`, differs from `reference`, the
// job of worker `than`.
absl::Status RequireSameJob(const ServerJob& reference, const ServerJob& other, int worker, int than = 0);

}  // namespace psring
