// Asynchronous and bounded staleness: each push is an update by itself.
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

class EachAlone : public Consistency, public BoundedWaits {
 public:
  EachAlone(int workers, int staleness)
      : Consistency(workers), staleness_(staleness), waits_(workers, false), clock_(workers, 0) {
    next_step_.assign(workers, 0);
  }

  absl::Status MayPush(int worker, int64_t step) const override {
    PSRING_RETURN_IF_ERROR(CheckWorker(worker, next_step_.size()));
    if (left_[worker]) return HasLeft(worker);
    PSRING_RETURN_IF_ERROR(CheckStep(worker, step, next_step_[worker]));
    if (!waits_[worker]) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step,
                                                      ", from the future: it may lead by ", staleness_,
                                                      " steps, and waits for others"));
  }

  Decision OnPush(int worker, int64_t step) override {
    const bool repeats = IsRepeat(worker, step);
    if (!repeats) {
      if (absl::Status status = MayPush(worker, step); !status.ok()) return Refuse(status);
      ++next_step_[worker];
      ++version_;
    }
    clock_[worker] = step + 1;
    waits_[worker] = true;
    return {.apply_count = repeats ? 0 : 1, .repeats = repeats, .may_read = Released()};
  }

  Decision OnLeave(int worker) override {
    if (absl::Status status = MayLeave(worker, left_, waits_); !status.ok()) return Refuse(status);
    return OnLost(worker);
  }

  Decision OnLost(int worker) override {
    left_[worker] = true;
    waits_[worker] = false;
    return {.may_read = Released()};
  }

  // Not before the step after its last push: that push is applied and must not be applied again.
  int64_t JoinsAt(int worker) const override {
    const int64_t slowest = Slowest();
    return slowest == INT64_MAX ? next_step_[worker] : std::max(slowest, next_step_[worker]);
  }

  Decision OnJoin(int worker, int64_t step) override {
    if (absl::Status status = CheckWorker(worker, left_.size()); !status.ok()) return Refuse(status);
    if (!left_[worker] || step < JoinsAt(worker)) {
      return Refuse(
          absl::FailedPreconditionError(absl::StrCat("worker ", worker, " cannot join at step ", step,
                                                     ": the others are ahead of it, or it has joined")));
    }
    left_[worker] = false;
    next_step_[worker] = step;
    return {.may_read = {worker}};
  }

  bool IsRepeat(int worker, int64_t step) const override {
    return CheckWorker(worker, left_.size()).ok() && !left_[worker] && step >= 0 && step < next_step_[worker];
  }

  Decision ReleaseAll() override {
    Decision decision;
    for (size_t i = 0; i < waits_.size(); ++i) {
      if (waits_[i]) decision.may_read.push_back(static_cast<int>(i));
    }
    waits_.assign(waits_.size(), false);
    return decision;
  }

  Wait WaitsFor() const override {
    if (std::find(waits_.begin(), waits_.end(), true) == waits_.end()) return {};
    Wait wait{.step = Slowest()};
    for (size_t i = 0; i < next_step_.size(); ++i) {
      if (!left_[i] && next_step_[i] == wait.step) wait.workers.push_back(static_cast<int>(i));
    }
    return wait;
  }

 private:
  // Number of pushes of the worker with the fewest.
  int64_t Slowest() const {
    int64_t slowest = INT64_MAX;
    for (size_t i = 0; i < next_step_.size(); ++i) {
      if (!left_[i]) slowest = std::min(slowest, next_step_[i]);
    }
    return slowest;
  }

  std::vector<int> Released() {
    std::vector<int> released;
    const int64_t slowest = Slowest();
    for (size_t i = 0; i < waits_.size(); ++i) {
      if (!waits_[i] || (staleness_ >= 0 && clock_[i] > slowest + staleness_)) continue;
      waits_[i] = false;
      released.push_back(static_cast<int>(i));
    }
    return released;
  }

  const int staleness_;         // -1: not bounded
  std::vector<bool> waits_;     // its push is applied but not answered yet
  std::vector<int64_t> clock_;  // of a worker that waits, after its answer
};

}  // namespace

std::unique_ptr<Consistency> MakeAsynchronous(int workers) {
  return std::make_unique<EachAlone>(workers, -1);
}

std::unique_ptr<Consistency> MakeBoundedStaleness(int workers, int staleness) {
  PSRING_CHECK(staleness >= 1);
  return std::make_unique<EachAlone>(workers, staleness);
}

}  // namespace psring
