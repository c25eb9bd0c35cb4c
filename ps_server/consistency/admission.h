// Synchronous training with backup workers (Chen et al. 2016): of N workers B are spare. The first N - B that
// announce the end of their backward pass for a step are admitted, each with its whole gradient over all
// buckets; the step's update is made of these. Whoever announces the step later is dropped: it gets the
// newest weights that are sure to come, and goes on with the step that builds on them. So a slow worker skips
// steps rather than fall behind for ever.
//
// Pure, like consistency.h. One instance a job (of several servers, server 0 holds it), and a bucket each of
// MakeBackupBucket, which hears of every verdict.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

class Admission {
 public:
  Admission(int workers, int backup);

  // `worker`'s gradient of `step` is whole. Refused: a step that is not its next one.
  absl::StatusOr<Verdict> OnAnnounce(int worker, int64_t step);

  // Nobody waits for it any more: a step is complete with those that remain, at most N - B of them.
  // `complete` above 0: the open step was, with so many workers; its number is `version`.
  absl::StatusOr<Verdict> OnLeave(int worker);

  // The worker is lost, at any moment: it is admitted to nothing any more. `complete`: as with OnLeave.
  Verdict OnLost(int worker);
  // A worker that has left or is lost comes back. It is dropped, so to speak, from a step that it never made:
  // the verdict's version is the step with which it goes on.
  absl::StatusOr<Verdict> OnJoin(int worker);

  // After a checkpoint: all go on with `step`, which admits nobody yet.
  void Restore(int64_t step, const std::vector<bool>& left);

  // The step that still admits workers: every bucket reaches this version, and none goes beyond it before the
  // step is complete.
  int64_t open_step() const { return open_step_; }
  int64_t dropped() const { return dropped_; }

  // Of the workers that are admitted to the open step: for which others. See Consistency::WaitsFor.
  Consistency::Wait WaitsFor() const;

 private:
  int needed() const;
  // How many made the open step complete, which then is the one before; 0: it is not.
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

}  // namespace psring
