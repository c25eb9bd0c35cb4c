// One update per push of every worker.
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

class Synchronous : public SummedPushes {
 public:
  explicit Synchronous(int workers) : SummedPushes(workers) {}

  absl::Status MayPush(int worker, int64_t step) const override {
    PSRING_RETURN_IF_ERROR(CheckWorker(worker, pushed_.size()));
    if (left_[worker]) return HasLeft(worker);
    // Every step makes one version, so the step to push is the version that it builds on.
    PSRING_RETURN_IF_ERROR(
        CheckStep(worker, step, reads_[worker] != kReadsNothing ? reads_[worker] : JoinsAt(worker)));
    if (!pushed_[worker] && reads_[worker] == kReadsNothing) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step,
                                                      ", from the future: step ", version_,
                                                      " still waits for other workers"));
  }

  Decision OnPush(int worker, int64_t step) override {
    Decision taken = TakePush(worker, step);
    return taken.accept && !taken.repeats ? UpdateOnceComplete() : taken;
  }

  Decision OnLeave(int worker) override {
    if (absl::Status status = MayLeave(worker, left_, Waiting(pushed_)); !status.ok()) return Refuse(status);
    return OnLost(worker);
  }

  Decision OnLost(int worker) override {
    left_[worker] = true;
    reads_[worker] = kReadsNothing;
    return UpdateOnceComplete();
  }

  void OnReset() override { ForgetPushes(); }

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

  Wait WaitsFor() const override {
    Wait wait{.step = version_};
    for (size_t i = 0; pushed_count_ > 0 && i < pushed_.size(); ++i) {
      if (IsMissing(i)) wait.workers.push_back(static_cast<int>(i));
    }
    return wait;
  }

 private:
  // The step cannot be complete without this worker.
  bool IsMissing(size_t worker) const {
    return !pushed_[worker] && !left_[worker] && reads_[worker] == kReadsNothing;
  }

  Decision UpdateOnceComplete() {
    // If all remaining workers have joined again and wait for this version, nobody is left to push.
    if (pushed_count_ == 0 && !AnyReads()) return {};
    for (size_t i = 0; i < pushed_.size(); ++i) {
      if (IsMissing(i)) return {};
    }
    return MakeVersion();
  }
};

}  // namespace

std::unique_ptr<Consistency> MakeSynchronous(int workers) { return std::make_unique<Synchronous>(workers); }

}  // namespace psring
