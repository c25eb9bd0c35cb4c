// The parameter server in its caller's hands: one thread, no wire, no clock. What a worker hears is there
// when a call returns, so the order of the calls is the order of everything. It is the server of live runs,
// with its Consistency, Admission and optimizer; only bytes do not travel.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

class InlineServer {
 public:
  // An exchange that is over, in all buckets.
  struct Answer {
    int worker = 0;
    int64_t step = 0;
    int64_t version = 0;             // of bucket 0; where `dropped`, the step to go on with
    std::vector<int64_t> staleness;  // by bucket
    bool dropped = false;
  };

  // All workers of `job` have joined; `weights` are version 0. Host memory only.
  static absl::StatusOr<std::unique_ptr<InlineServer>> Start(const ServerJob& job, Span weights,
                                                             Device& device);
  virtual ~InlineServer() = default;

  // One bucket of a worker's gradient (a sum over `samples` samples), which may be overwritten afterwards.
  virtual absl::Status Push(int worker, int64_t step, int64_t samples, int bucket, ConstSpan gradient) = 0;
  // Backup workers: the gradient of `step` is whole. Whether it is to be pushed; otherwise it is dropped.
  virtual absl::StatusOr<bool> Announce(int worker, int64_t step) = 0;
  // The exchanges that have ended since the last call, in their order.
  virtual std::vector<Answer> TakeAnswers() = 0;
  // The weights that came with `worker`'s last answer, once.
  virtual void CopyWeights(int worker, Span to) = 0;

  // The server's weights as they are. Not between an answer to worker 0 and its CopyWeights.
  virtual absl::Status Fetch(Span weights) = 0;
  virtual ServerResult Result() const = 0;
};

}  // namespace psring
