// Who waits for whom: pure state machines. No tensors, threads, clock or I/O; the live server and the
// simulator drive the same code. One instance a bucket; with backup workers also one Admission (admission.h)
// a job.
//
// *worker* 0 to workers - 1; *step* a worker's step, from 0; *version* number of updates applied to the
// bucket; *clock* of a worker: the step that it is released to compute.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

// "sync", "async", "ssp:K" (bounded staleness K) or "backup:B" (synchronous, B workers spare), taken apart.
struct WaitingRule {
  enum class Kind { kSynchronous, kAsynchronous, kBoundedStaleness, kBackup };
  Kind kind = Kind::kSynchronous;
  int number = 0;  // K or B

  // Each push makes an update by itself.
  bool each_alone() const { return kind == Kind::kAsynchronous || kind == Kind::kBoundedStaleness; }
};
// "ssp:0" is synchronous. InvalidArgument: an unknown word, a number that is missing, negative or too large,
// B not below `workers`.
absl::StatusOr<WaitingRule> ParseWaitingRule(const std::string& name, int workers);

// What an Admission has decided of one worker's gradient.
struct Verdict {
  int worker = 0;
  bool admitted = false;
  // Admitted: the version that its gradient builds on, which is its step. Dropped: the version with which it
  // goes on, which is its next step.
  int64_t version = 0;
  // Above 0: with this the gradient of step `version` (admitted) is complete, made of so many workers'.
  int complete = 0;
};

class Consistency {
 public:
  struct Decision {
    bool accept = true;   // false: what was asked must not be done, and nothing has changed
    std::string reason;   // why it was not accepted
    int apply_count = 0;  // 0: wait for more; n: the n pushes not yet applied, summed, make one update now
    bool empty_update = false;  // the version goes up, and no push is in it: all that were to be are lost
    std::vector<int>
        may_read;  // workers whose pending pull is answered now, with the version after the update
  };
  // Of those that wait: for which workers, and for their push of which step. No workers: nobody waits.
  struct Wait {
    std::vector<int> workers;
    int64_t step = 0;
  };

  virtual ~Consistency() = default;
  virtual std::string name() const = 0;  // "sync", "async", "ssp:2", "backup:1"
  virtual int64_t version() const = 0;

  // Whether a push of `worker`'s `step` may begin: asked before its first byte is added to anything, because
  // a sum cannot be taken back. The error says whether it comes from the past, from the future, or twice.
  virtual absl::Status MayPush(int worker, int64_t step) const = 0;

  // The whole gradient of `worker`'s `step` has arrived. Not accepted where MayPush would not be OK.
  virtual Decision OnPush(int worker, int64_t step) = 0;

  // The worker's data are used up: nobody waits for it any more. Updates are made of those that remain. Not
  // accepted while a push of it is unanswered.
  virtual Decision OnLeave(int worker) = 0;

  // The worker is lost, at any moment: nobody waits for it any more, and it reads nothing. A push of it that
  // is whole still counts; where it was in the middle of one whose bytes are in a sum already, OnReset comes
  // first.
  virtual Decision OnLost(int worker) = 0;
  // The pushes that are not applied yet are taken back, every worker's; they will come again.
  virtual void OnReset() {}

  // A worker that has left or is lost may come back. JoinsAt: the first step that it can take part in.
  // OnJoin, with the greatest JoinsAt of all buckets: it reads the weights of version `step` (of each push by
  // itself: the newest) once they are there, and is waited for from its push of `step` on.
  virtual int64_t JoinsAt(int worker) const = 0;
  virtual Decision OnJoin(int worker, int64_t step) = 0;

  // Whether the worker's push of `step`, its newest, is whole: should it come again, then because its answer
  // was lost on the way.
  virtual bool IsRepeat(int worker, int64_t step) const = 0;
  // It came again: nothing is applied, and its worker reads (or goes on waiting).
  virtual Decision OnRepeat(int worker, int64_t step) = 0;

  // What a checkpoint must hold, taken while nobody is in the middle of anything: no push of a synchronous
  // machine waits to be applied.
  struct State {
    int64_t version = 0;
    std::vector<int64_t> next_step;  // by worker; machines that apply each push alone
    std::vector<bool> left;          // by worker
  };
  virtual State Save() const = 0;
  // As if the machine had got there by itself; nobody waits.
  virtual void Restore(const State& state) = 0;
  // After Restore, where each push is applied alone: the worker goes on with `step`, later than its next one,
  // because the updates between them were lost with the server. Returns how many.
  virtual int64_t SkipTo(int worker, int64_t step);

  // Backup workers only, from the job's one Admission; in the order in which it decided.
  virtual Decision OnVerdict(const Verdict& verdict);
  // Backup workers only: no more workers will be admitted to step `version`; `complete` were.
  virtual Decision OnComplete(int64_t version, int complete);

  virtual Wait WaitsFor() const = 0;
};

// One update for one push of every worker; all read the version it made.
std::unique_ptr<Consistency> MakeSynchronous(int workers);
// Each push makes one update when it arrives; its worker reads the version that this very push created.
std::unique_ptr<Consistency> MakeAsynchronous(int workers);
// Each push makes one update when it arrives. Its worker reads, and goes on to clock c, once every worker has
// pushed step c - `staleness` - 1: so no clock leads the slowest by more than `staleness` (1 at least), and
// what it reads holds every update of a clock up to c - `staleness` - 1 (Ho et al. 2013). Where all buckets
// of a job keep to this, so does the job: the slowest worker is released in every bucket.
std::unique_ptr<Consistency> MakeBoundedStaleness(int workers, int staleness);
// One update for the pushes of the workers that an Admission let in; these and the dropped ones that wait
// read the version it made.
std::unique_ptr<Consistency> MakeBackupBucket(int workers, int backup);

// `name`: see ParseWaitingRule.
absl::StatusOr<std::unique_ptr<Consistency>> MakeConsistency(const std::string& name, int workers);

namespace consistency {  // what the machines share

absl::Status CheckWorker(int worker, size_t workers);
// `next`: the first step that the worker has not pushed yet.
absl::Status CheckStep(int worker, int64_t step, int64_t next);
// CheckWorker, and neither gone nor waiting.
absl::Status MayLeave(int worker, const std::vector<bool>& left, const std::vector<bool>& waits);
absl::Status HasLeft(int worker);
Consistency::Decision Refuse(const absl::Status& why);

}  // namespace consistency

}  // namespace psring
