// What a server must know to serve a training job. Rank 0's counts; a worker whose job differs is refused,
// with the field that differs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/optimizer.h"

namespace psring {

struct ServerJob {
  int workers = 1;
  std::string consistency = "sync";  // sync, async, ssp:K, backup:B (consistency.h)
  bool deterministic = false;  // sync: add in worker order, so that the sum's bits do not depend on arrival
  bool serial =
      false;  // replies to a worker start only when its whole gradient (all buckets of the step) has arrived
  // Which part this is of how many, each on a server of its own (sharding.h).
  int server = 0;
  int servers = 1;
  // Synchronous modes, above 0: the norm to which the mean gradient over all parameters is clipped. Then no
  // bucket is updated or answered before the whole gradient has been added up.
  double clip_norm = 0;
  // Asynchronous modes: each push's rate is divided by max(1, its staleness) (Zhang, Gupta, Lian & Liu 2016,
  // "Staleness-aware Async-SGD for Distributed Deep Learning").
  bool staleness_lr = false;
  DType wire = DType::kFloat32;  // of gradients on their way here; added up, and answered, in float32
  int64_t parameters = 0;
  std::vector<Bucket> buckets;
  OptimizerConfig optimizer;
  LrSchedule schedule;
  // Above 0: the job goes on from a checkpoint that its workers have. So many steps of each worker are made,
  // from so many samples in all.
  int64_t start_step = 0;
  int64_t start_samples = 0;
  // Asynchronous modes: and so many updates more, fewer than there are workers, since these need not have
  // made the same steps.
  int start_beyond = 0;
};

// InvalidArgument unless the job's numbers are possible: finite, within the bounds of messages.h, and buckets
// that are numbered in order and cover every parameter exactly once. Does not bound the number of parameters:
// job_memory.h.
absl::Status ValidateServerJob(const ServerJob& job);

// InvalidArgument names the first field in which `other` differs from `reference`.
absl::Status RequireSameJob(const ServerJob& reference, const ServerJob& other, int other_worker);

}  // namespace psring
