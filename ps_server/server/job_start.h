// How a job begins, and continues after a restart: workers join with the same job, and when all are here and
// worker 0's weights are complete, all begin. No locks and no clock; only epoch() is thread-safe, and what
// Restore sets does not change after it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps_server/protocol/server_job.h"
#include "ps_server/server/checkpoint.h"
#include "ps_server/server/membership.h"

namespace psring {

class JobStart {
 public:
  // Of server `server` of `servers`.
  JobStart(int workers, int server, int servers);

  // Whether this server can continue from the checkpoint.
  absl::Status MayRestore(const Checkpoint& checkpoint) const;
  // Before any Join. `epoch`: from a Rewind; otherwise it follows from what the workers know.
  void Restore(const Checkpoint& checkpoint, bool each_alone, std::optional<int64_t> epoch);
  bool restored() const { return restored_; }

  // InvalidArgument unless the job is valid, for this server, and the same as that of the members that have
  // joined, or of the checkpoint.
  absl::Status Check(int worker, const ServerJob& job) const;
  // The job with which the worker joins or, if `why` is an error, was rejected.
  void NoteJoin(int worker, const ServerJob& job, const absl::Status& why);
  // "; worker 1 was rejected: ...", the first of these; or nothing.
  std::string RejectionOf(const std::vector<int>& workers) const;

  void OnWeights() { weights_arrived_ = true; }  // all of worker 0's
  // Whether the job begins now; once.
  bool Begin(const Membership& members);
  bool has_begun() const { return has_begun_; }
  std::string WaitsFor(const Membership& members) const;  // before it has begun

  int64_t epoch() const { return epoch_; }
  // The step with which a worker begins: a checkpoint's, or 0.
  int64_t first_step(int worker) const { return first_step_[static_cast<size_t>(worker)]; }
  void BeginAt(int64_t step) { first_step_.assign(first_step_.size(), step); }

 private:
  const int workers_, server_, servers_;
  std::optional<ServerJob> job_;         // the checkpoint's, or that of the first worker that has joined
  int job_of_ = 0;                       // that worker
  std::vector<std::string> rejections_;  // by worker: why its last Join was rejected
  std::vector<int64_t> first_step_;      // by worker
  std::atomic<int64_t> epoch_{0};
  bool restored_ = false;
  bool epoch_is_given_ = false;
  bool weights_arrived_ = false;
  bool has_begun_ = false;
};

}  // namespace psring
