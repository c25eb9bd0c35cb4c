// Synchronous training with backup workers (Chen et al. 2016): of N workers, B are backups. The first N - B
// workers that announce the end of their backward pass for a step are admitted, each with its gradient of all
// buckets; the step's update is made of these. A worker that announces the step later is dropped: it gets the
// newest weights that are certain to exist, and continues with the step that builds on them. So a slow worker
// skips steps and does not fall behind.
//
// Pure, like consistency.h. One Admission per job (with several servers, server 0 holds it), and one
// BackupBucket per bucket, which receives every verdict.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

// What an Admission has decided about one worker's gradient.
struct Verdict {
  int worker = 0;
  bool admitted = false;
  // Admitted: the version that its gradient builds on, which is its step. Dropped: the version with which it
  // continues, which is its next step.
  int64_t version = 0;
  // Above 0: with this gradient, step `version` is complete, made of this many workers' gradients.
  int complete = 0;
};

class Admission {
 public:
  Admission(int workers, int backup);

  // `worker`'s gradient of `step` is complete. Refused unless `step` is its next one.
  absl::StatusOr<Verdict> OnAnnounce(int worker, int64_t step);

  // Nobody waits for the worker any more: a step needs the workers that remain, at most N - B of them.
  // `complete` above 0: the open step is complete with this many workers; its number is `version`.
  absl::StatusOr<Verdict> OnLeave(int worker);

  // The worker is lost, at any moment, and is not admitted to any step. `complete`: as in OnLeave.
  Verdict OnLost(int worker);
  // A worker that has left or is lost joins again, as if it had been dropped: the verdict's version is the
  // step with which it continues.
  absl::StatusOr<Verdict> OnJoin(int worker);

  // From a checkpoint: all continue with `step`, to which nobody is admitted yet.
  void Restore(int64_t step, const std::vector<bool>& left);

  // The step that still admits workers. Every bucket reaches this version, and none goes beyond it before the
  // step is complete.
  int64_t open_step() const { return open_step_; }
  int64_t dropped() const { return dropped_; }

  // The workers that those admitted to the open step wait for. See Consistency::WaitsFor.
  Consistency::Wait WaitsFor() const;

 private:
  int needed() const;
  // Closes the open step if enough workers are admitted. Returns their number, or 0.
  int CompleteOnceEnough();

  const int backup_;
  std::vector<int64_t> next_step_;  // by worker
  std::vector<bool> admitted_;      // to the open step
  std::vector<bool> left_;
  int admitted_count_ = 0;
  int remaining_;
  int64_t open_step_ = 0;
  int64_t dropped_ = 0;
};

// A bucket's state machine: one update for the pushes of the workers that the Admission admitted. These
// workers, and the dropped ones that wait, read the resulting version.
class BackupBucket : public SummedPushes {
 public:
  // From the job's Admission, in the order of its decisions.
  virtual Decision OnVerdict(const Verdict& verdict) = 0;
  // No more workers will be admitted to step `version`; `complete` were.
  virtual Decision OnComplete(int64_t version, int complete) = 0;

 protected:
  explicit BackupBucket(int workers) : SummedPushes(workers) {}
};
std::unique_ptr<BackupBucket> MakeBackupBucket(int workers, int backup);

}  // namespace psring
