// Who waits for whom: pure state machines without tensors, threads, clock or I/O, driven by the live server
// and by the simulator. One instance per bucket; with backup workers also one Admission (admission.h) per
// job.
//
// *worker*: 0 to workers - 1. *step*: a worker's step, from 0. *version*: number of updates applied to the
// bucket. *clock* of a worker: the step that it may compute now.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

// "sync", "async", "ssp:K" (bounded staleness K) or "backup:B" (synchronous, B backup workers), parsed.
struct WaitingRule {
  enum class Kind { kSynchronous, kAsynchronous, kBoundedStaleness, kBackup };
  Kind kind = Kind::kSynchronous;
  int number = 0;  // K or B

  // Each push is one update.
  bool each_alone() const { return kind == Kind::kAsynchronous || kind == Kind::kBoundedStaleness; }
};
// "ssp:0" is synchronous. InvalidArgument: an unknown name, a number that is missing, negative or too large,
// B not below `workers`.
absl::StatusOr<WaitingRule> ParseWaitingRule(const std::string& name, int workers);

// The workers for which `is(worker)`, of `workers`.
template <typename Is>
std::vector<int> WorkersWhere(size_t workers, const Is& is) {
  std::vector<int> those;
  for (size_t i = 0; i < workers; ++i) {
    if (is(i)) those.push_back(static_cast<int>(i));
  }
  return those;
}

class Consistency {
 public:
  struct Decision {
    bool accept = true;   // false: the event is refused and nothing has changed
    std::string reason;   // why it is refused
    int apply_count = 0;  // 0: wait for more; n: the n pushes not yet applied, summed, make one update now
    bool empty_update = false;  // the version increases without a push, because all its workers are lost
    bool repeats = false;       // the push was applied before, and nothing is applied now
    // Workers whose pending pull is answered now, with the version after the update.
    std::vector<int> may_read;
  };
  // The workers that others wait for, and the step that they have to push. No workers: nobody waits.
  struct Wait {
    std::vector<int> workers;
    int64_t step = 0;
  };
  // Part of a checkpoint. Save synchronous machines only when no push waits to be applied.
  struct State {
    int64_t version = 0;
    std::vector<int64_t> next_step;  // by worker; only machines that apply each push by itself
    std::vector<bool> left;          // by worker
  };

  virtual ~Consistency() = default;
  int64_t version() const { return version_; }
  State Save() const { return {.version = version_, .next_step = next_step_, .left = left_}; }
  // Puts a new machine into a saved state, in which no worker waits.
  void Restore(const State& state);

  // Whether a push of `worker`'s `step` may begin. Ask before its first byte is added to a sum, because a sum
  // cannot be undone. The error says whether the step is in the past, in the future, or repeated.
  virtual absl::Status MayPush(int worker, int64_t step) const = 0;
  // Whether the worker's push of `step` is complete, and it is its newest one; or any, if each push is an
  // update by itself. If it arrives again, its answer was lost, or another server went back.
  virtual bool IsRepeat(int worker, int64_t step) const = 0;
  // The whole gradient of `worker`'s `step` has arrived. Of a repeat nothing is applied; its worker reads, or
  // continues to wait. Other pushes are refused unless MayPush is OK.
  virtual Decision OnPush(int worker, int64_t step) = 0;

  // The worker has used up its data. Updates consist of the pushes of the remaining workers. Refused while a
  // push of the worker is unanswered.
  Decision OnLeave(int worker);
  // The worker is lost, at any moment: nobody waits for it, and it reads nothing. Its complete push counts;
  // if part of a push is in a sum, call OnReset (SummedPushes) first.
  virtual Decision OnLost(int worker) = 0;
  // A worker that has left or is lost joins again. JoinsAt: the first step that it can take part in. Call
  // OnJoin with the largest JoinsAt of all buckets: the worker reads version `step` when it exists (the
  // newest version if each push is an update by itself), and others wait for it from its push of `step` on.
  virtual int64_t JoinsAt(int worker) const = 0;
  virtual Decision OnJoin(int worker, int64_t step) = 0;

  virtual Wait WaitsFor() const = 0;

  static absl::Status CheckWorker(int worker, size_t workers);
  // `next`: the first step that the worker has not pushed yet.
  static absl::Status CheckStep(int worker, int64_t step, int64_t next);
  // CheckWorker, and the worker has neither left nor waits.
  static absl::Status MayLeave(int worker, const std::vector<bool>& left, const std::vector<bool>& waits);

 protected:
  explicit Consistency(int workers) : left_(static_cast<size_t>(workers)) {}
  static absl::Status HasLeft(int worker);
  static Decision Refuse(const absl::Status& why);
  // By worker: it has pushed and is not answered, or waits for a version.
  virtual std::vector<bool> Waiting() const = 0;

  int64_t version_ = 0;
  std::vector<bool> left_;          // or lost, by worker
  std::vector<int64_t> next_step_;  // as in State
};

// Capability of the synchronous machines, and what they share: an update is the sum of several pushes.
class SummedPushes : public Consistency {
 public:
  // Discards the pushes of all workers that are not applied yet; the workers send them again.
  virtual void OnReset() = 0;

  bool IsRepeat(int worker, int64_t step) const override;
  Decision OnPush(int worker, int64_t step) override;
  int64_t JoinsAt(int worker) const override { return version_ + (pushed_[worker] ? 1 : 0); }

 protected:
  static constexpr int64_t kReadsNothing = -1;

  explicit SummedPushes(int workers);
  // Makes the next version if nobody is missing any more.
  virtual Decision UpdateOnceComplete() = 0;
  // The next version, made of the pushes so far.
  Decision MakeVersion();
  void ForgetPushes();
  bool AnyReads() const;
  // By worker: `busy`, or it waits for a version.
  std::vector<bool> WithReaders(std::vector<bool> busy) const;

  std::vector<bool> pushed_;    // towards the next version
  int pushed_count_ = 0;        // of them
  std::vector<int64_t> reads_;  // the version that a joining or dropped worker waits for
};

// Capability of bounded staleness.
class BoundedWaits {
 public:
  virtual ~BoundedWaits() = default;
  // Another server went back, with all workers: those that wait read now.
  virtual Consistency::Decision ReleaseAll() = 0;
};

// One update per push of every worker; all read the resulting version.
std::unique_ptr<Consistency> MakeSynchronous(int workers);
// Each push makes one update when it arrives; its worker reads the resulting version.
std::unique_ptr<Consistency> MakeAsynchronous(int workers);
// Each push makes one update when it arrives. Its worker may compute clock c when every worker has pushed
// step c - `staleness` - 1: no clock leads the slowest by more than `staleness` (at least 1), and the weights
// it reads contain every update of a clock up to c - `staleness` - 1 (Ho et al. 2013). If every bucket
// follows this rule, so does the job: the slowest worker waits in no bucket.
std::unique_ptr<Consistency> MakeBoundedStaleness(int workers, int staleness);

std::unique_ptr<Consistency> MakeConsistency(const WaitingRule& rule, int workers);
// `name`: see ParseWaitingRule.
absl::StatusOr<std::unique_ptr<Consistency>> MakeConsistency(const std::string& name, int workers);

}  // namespace psring
