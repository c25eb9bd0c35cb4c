// The live parameter server driven by one thread, without a network or a clock: answers are available when a
// call returns, so the order of calls determines everything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "ps_server/protocol/server_job.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

class InlineServer {
 public:
  // A completed exchange of all buckets.
  struct Answer {
    int worker = 0;
    int64_t step = 0;
    int64_t version = 0;             // of bucket 0; if `dropped`, the step to continue with
    std::vector<int64_t> staleness;  // by bucket
    bool dropped = false;
  };

  // All workers of `job` have joined; `weights` are version 0. Host memory only.
  static absl::StatusOr<std::unique_ptr<InlineServer>> Start(const ServerJob& job, Span weights,
                                                             Device& device);

  // One bucket of a worker's gradient (a sum over `samples` samples), which may be overwritten afterwards.
  absl::Status Push(int worker, int64_t step, int64_t samples, int bucket, ConstSpan gradient);
  // Backup workers: the gradient of `step` is complete. True: push it; false: it is dropped.
  absl::StatusOr<bool> Announce(int worker, int64_t step);
  // The exchanges completed since the last call, by worker.
  std::vector<Answer> TakeAnswers();
  // The weights of `worker`'s last answer. Call once per answer.
  void CopyWeights(int worker, Span to);

  // The server's current weights. Not between an answer to worker 0 and its CopyWeights.
  absl::Status Fetch(Span weights);
  ServerResult Result() const { return ResultOf(0, server_.stats()); }

 private:
  class Inbox;

  InlineServer(const ServerJob& job, Device& device);
  absl::Status Begin(Span weights);
  Inbox& InboxOf(int worker) { return *inboxes_[static_cast<size_t>(worker)]; }
  absl::Status Failure(int worker);

  const ServerJob job_;
  std::vector<std::shared_ptr<Inbox>> inboxes_;  // by worker
  ParameterServer server_;
  std::optional<Lane> lane_;
};

}  // namespace psring
