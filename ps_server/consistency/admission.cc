#include "ps_server/consistency/admission.h"

#include <algorithm>
#include <optional>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {

Admission::Admission(int workers, int backup)
    : backup_(backup),
      next_step_(workers, 0),
      admitted_(workers, false),
      left_(workers, false),
      remaining_(workers) {
  PSRING_CHECK(backup >= 0 && backup < workers);
}

// Workers that have left reduce the backups first.
int Admission::needed() const { return std::min(static_cast<int>(next_step_.size()) - backup_, remaining_); }

absl::StatusOr<Verdict> Admission::OnAnnounce(int worker, int64_t step) {
  PSRING_RETURN_IF_ERROR(Consistency::CheckWorker(worker, next_step_.size()));
  if (left_[worker]) {
    return FailedPrecondition("worker ", worker, " has left and must not announce a gradient");
  }
  PSRING_RETURN_IF_ERROR(Consistency::CheckStep(worker, step, next_step_[worker]));
  if (step > open_step_ || admitted_[worker]) {
    return FailedPrecondition("worker ", worker, " announced step ", step, ", from the future: step ",
                              open_step_, " still waits for other workers");
  }
  Verdict verdict{.worker = worker, .version = open_step_};
  if (step < open_step_) {
    next_step_[worker] = open_step_;
    ++dropped_;
    return verdict;
  }
  verdict.admitted = true;
  admitted_[worker] = true;
  ++admitted_count_;
  ++next_step_[worker];
  verdict.complete = CompleteOnceEnough();
  return verdict;
}

absl::StatusOr<Verdict> Admission::OnLeave(int worker) {
  PSRING_RETURN_IF_ERROR(Consistency::MayLeave(worker, left_, admitted_));
  left_[worker] = true;
  --remaining_;
  Verdict verdict{.worker = worker, .version = open_step_};
  verdict.complete = CompleteOnceEnough();
  return verdict;
}

Verdict Admission::OnLost(int worker) {
  Verdict verdict{.worker = worker, .version = open_step_};
  if (left_[worker]) return verdict;
  left_[worker] = true;
  --remaining_;
  if (admitted_[worker]) --admitted_count_;
  admitted_[worker] = false;
  verdict.complete = CompleteOnceEnough();
  return verdict;
}

absl::StatusOr<Verdict> Admission::OnJoin(int worker) {
  PSRING_RETURN_IF_ERROR(Consistency::CheckWorker(worker, next_step_.size()));
  if (!left_[worker]) return FailedPrecondition("worker ", worker, " has joined already");
  left_[worker] = false;
  ++remaining_;
  next_step_[worker] = open_step_;
  return Verdict{.worker = worker, .version = open_step_};
}

void Admission::Restore(int64_t step, const std::vector<bool>& left) {
  open_step_ = step;
  next_step_.assign(next_step_.size(), step);
  left_ = left;
  remaining_ = static_cast<int>(std::count(left.begin(), left.end(), false));
}

int Admission::CompleteOnceEnough() {
  if (admitted_count_ == 0 || admitted_count_ < needed()) return 0;
  const int complete = admitted_count_;
  admitted_.assign(admitted_.size(), false);
  admitted_count_ = 0;
  ++open_step_;
  return complete;
}

Consistency::Wait Admission::WaitsFor() const {
  if (admitted_count_ == 0) return {.step = open_step_};
  return {WorkersWhere(left_.size(), [&](size_t i) { return !admitted_[i] && !left_[i]; }), open_step_};
}

namespace {

class BackupMachine : public BackupBucket {
 public:
  explicit BackupMachine(int workers) : BackupBucket(workers), admitted_(workers, false) {}

  absl::Status MayPush(int worker, int64_t step) const override {
    PSRING_RETURN_IF_ERROR(CheckWorker(worker, pushed_.size()));
    PSRING_RETURN_IF_ERROR(CheckStep(worker, step, JoinsAt(worker)));
    if (admitted_[worker] && !pushed_[worker]) return absl::OkStatus();
    return FailedPrecondition("worker ", worker, " pushed step ", step, ", to which it was not admitted");
  }

  Decision OnVerdict(const Verdict& verdict) override {
    const int worker = verdict.worker;
    if (absl::Status status = CheckWorker(worker, pushed_.size()); !status.ok()) return Refuse(status);
    if (admitted_[worker] || reads_[worker] != kReadsNothing ||
        (verdict.admitted ? verdict.version != version_ : verdict.version < version_)) {
      return Refuse(
          FailedPrecondition("worker ", worker, " announced a step whose weights it cannot have received"));
    }
    if (verdict.admitted) {
      admitted_[worker] = true;
      return verdict.complete > 0 ? OnComplete(verdict.version, verdict.complete) : Decision{};
    }
    if (verdict.version == version_) return {.may_read = {worker}};
    reads_[worker] = verdict.version;
    return {};
  }

  Decision OnComplete(int64_t version, int complete) override {
    // The admission does not know of complete pushes by workers that were lost since; they count too.
    complete += lost_pushes_;
    if (version != version_ || complete < pushed_count_) {
      return Refuse(
          Internal("step ", version, " is complete with ", complete, " workers at version ", version_));
    }
    complete_ = complete;
    return UpdateOnceComplete();
  }

  // In a complete step the worker is counted; in the open one the admission has uncounted it.
  Decision OnLost(int worker) override {
    left_[worker] = true;
    reads_[worker] = kReadsNothing;
    if (!admitted_[worker]) return {};
    if (complete_.has_value()) {
      if (!pushed_[worker]) --*complete_;
    } else if (pushed_[worker]) {
      ++lost_pushes_;
    }
    admitted_[worker] = false;
    return UpdateOnceComplete();
  }

  void OnReset() override {
    // A lost worker does not push again, nor one that has joined since and waits for weights.
    for (size_t i = 0; i < pushed_.size(); ++i) {
      const bool is_gone = left_[i] || reads_[i] != kReadsNothing;
      if (pushed_[i] && is_gone && complete_.has_value()) --*complete_;
    }
    lost_pushes_ = 0;
    ForgetPushes();
  }

  Decision OnJoin(int worker, int64_t step) override {
    if (!left_[worker]) return Refuse(FailedPrecondition("worker ", worker, " has joined already"));
    left_[worker] = false;
    return OnVerdict({.worker = worker, .version = step});
  }

  Wait WaitsFor() const override {
    if (pushed_count_ == 0 && !AnyReads()) return {.step = version_};
    return {WorkersWhere(left_.size(), [&](size_t i) { return admitted_[i] && !pushed_[i]; }), version_};
  }

 private:
  std::vector<bool> Waiting() const override { return WithReaders(admitted_); }

  Decision UpdateOnceComplete() override {
    if (!complete_.has_value() || pushed_count_ < *complete_) return {};
    admitted_.assign(admitted_.size(), false);
    lost_pushes_ = 0;
    complete_.reset();
    return MakeVersion();
  }

  std::vector<bool> admitted_;   // to step `version_`
  int lost_pushes_ = 0;          // complete pushes of workers lost before `complete_` was known
  std::optional<int> complete_;  // number of workers in step `version_`, once known
};

}  // namespace

std::unique_ptr<BackupBucket> MakeBackupBucket(int workers, int backup) {
  PSRING_CHECK(backup >= 0 && backup < workers);
  return std::make_unique<BackupMachine>(workers);
}

}  // namespace psring
