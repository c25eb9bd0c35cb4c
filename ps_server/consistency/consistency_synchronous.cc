// One update per push of every worker.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

using consistency::CheckStep;
using consistency::CheckWorker;
using consistency::HasLeft;
using consistency::MayLeave;
using consistency::Refuse;

class Synchronous : public Consistency, public SummedPushes {
 public:
  explicit Synchronous(int workers)
      : pushed_(workers, false), left_(workers, false), reads_(workers, kReadsNothing) {}

  absl::Status MayPush(int worker, int64_t step) const override {
    PSRING_RETURN_IF_ERROR(CheckWorker(worker, pushed_.size()));
    if (left_[worker]) return HasLeft(worker);
    // Every step makes one version, so the step to push is the version that it builds on.
    PSRING_RETURN_IF_ERROR(CheckStep(worker, step, NextStep(worker)));
    if (!pushed_[worker] && reads_[worker] == kReadsNothing) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step,
                                                      ", from the future: step ", version_,
                                                      " still waits for other workers"));
  }

  Decision OnPush(int worker, int64_t step) override {
    if (absl::Status status = MayPush(worker, step); !status.ok()) return Refuse(status);
    pushed_[worker] = true;
    ++waiting_;
    return UpdateOnceComplete();
  }

  Decision OnLeave(int worker) override {
    std::vector<bool> waits = pushed_;
    for (size_t i = 0; i < waits.size(); ++i) waits[i] = waits[i] || reads_[i] != kReadsNothing;
    if (absl::Status status = MayLeave(worker, left_, waits); !status.ok()) return Refuse(status);
    return OnLost(worker);
  }

  Decision OnLost(int worker) override {
    left_[worker] = true;
    reads_[worker] = kReadsNothing;
    return UpdateOnceComplete();
  }

  void OnReset() override {
    pushed_.assign(pushed_.size(), false);
    waiting_ = 0;
  }

  int64_t JoinsAt(int worker) const override { return version_ + (pushed_[worker] ? 1 : 0); }

  Decision OnJoin(int worker, int64_t step) override {
    if (absl::Status status = CheckWorker(worker, left_.size()); !status.ok()) return Refuse(status);
    if (!left_[worker] || step < JoinsAt(worker)) {
      return Refuse(absl::FailedPreconditionError(absl::StrCat(
          "worker ", worker, " cannot join at step ", step, ": the step is over, or it has joined")));
    }
    left_[worker] = false;
    if (step == version_) return {.may_read = {worker}};
    reads_[worker] = step;
    return {};
  }

  bool IsRepeat(int worker, int64_t step) const override {
    return CheckWorker(worker, left_.size()).ok() && !left_[worker] && reads_[worker] == kReadsNothing &&
           step >= 0 && step == NextStep(worker) - 1;
  }
  Decision OnRepeat(int worker, int64_t step) override {
    if (!IsRepeat(worker, step)) return Refuse(MayPush(worker, step));
    if (pushed_[worker]) return {};
    return {.may_read = {worker}};
  }

  Wait WaitsFor() const override {
    Wait wait{.step = version_};
    for (size_t i = 0; waiting_ > 0 && i < pushed_.size(); ++i) {
      if (IsMissing(i)) wait.workers.push_back(static_cast<int>(i));
    }
    return wait;
  }

  State Save() const override { return {.version = version_, .left = left_}; }
  void Restore(const State& state) override {
    version_ = state.version;
    left_ = state.left;
  }

 private:
  static constexpr int64_t kReadsNothing = -1;

  int64_t NextStep(int worker) const {
    return reads_[worker] != kReadsNothing ? reads_[worker] : version_ + (pushed_[worker] ? 1 : 0);
  }
  // The step cannot be complete without this worker.
  bool IsMissing(size_t worker) const {
    return !pushed_[worker] && !left_[worker] && reads_[worker] == kReadsNothing;
  }

  Decision UpdateOnceComplete() {
    // If all remaining workers have joined again and wait for this version, nobody is left to push.
    const bool any_reads =
        std::any_of(reads_.begin(), reads_.end(), [](int64_t version) { return version != kReadsNothing; });
    if (waiting_ == 0 && !any_reads) return {};
    for (size_t i = 0; i < pushed_.size(); ++i) {
      if (IsMissing(i)) return {};
    }
    Decision decision{.apply_count = waiting_, .empty_update = waiting_ == 0};
    ++version_;
    for (size_t i = 0; i < pushed_.size(); ++i) {
      if ((!pushed_[i] || left_[i]) && reads_[i] != version_) continue;
      decision.may_read.push_back(static_cast<int>(i));
      reads_[i] = kReadsNothing;
    }
    OnReset();
    return decision;
  }

  std::vector<bool> pushed_;    // towards the next version
  std::vector<bool> left_;      // or lost
  std::vector<int64_t> reads_;  // the version that a joining worker waits for
  int waiting_ = 0;             // pushes towards the next version
};

}  // namespace

std::unique_ptr<Consistency> MakeSynchronous(int workers) { return std::make_unique<Synchronous>(workers); }

}  // namespace psring
