#include "ps_server/consistency/consistency.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "ps_server/consistency/admission.h"

namespace psring {

absl::Status Consistency::CheckWorker(int worker, size_t workers) {
  if (worker >= 0 && static_cast<size_t>(worker) < workers) return absl::OkStatus();
  return InvalidArgument("worker ", worker, " is out of range: there are ", workers);
}

absl::Status Consistency::CheckStep(int worker, int64_t step, int64_t next) {
  if (step == next) return absl::OkStatus();
  if (step == next - 1) return FailedPrecondition("worker ", worker, " pushed step ", step, " twice");
  return FailedPrecondition("worker ", worker, " pushed step ", step, ", from the ",
                            step < next ? "past" : "future", ": its next one is ", next);
}

absl::Status Consistency::MayLeave(int worker, const std::vector<bool>& left,
                                   const std::vector<bool>& waits) {
  PSRING_RETURN_IF_ERROR(CheckWorker(worker, left.size()));
  if (left[worker]) return FailedPrecondition("worker ", worker, " has left twice");
  if (!waits[worker]) return absl::OkStatus();
  return FailedPrecondition("worker ", worker, " leaves before its push is answered");
}

absl::Status Consistency::HasLeft(int worker) {
  return FailedPrecondition("worker ", worker, " has left and must not push");
}

Consistency::Decision Consistency::Refuse(const absl::Status& why) {
  return {.accept = false, .reason = std::string(why.message())};
}

Consistency::Decision Consistency::OnLeave(int worker) {
  if (absl::Status status = MayLeave(worker, left_, Waiting()); !status.ok()) return Refuse(status);
  return OnLost(worker);
}

void Consistency::Restore(const State& state) {
  version_ = state.version;
  left_ = state.left;
  if (!next_step_.empty()) next_step_ = state.next_step;
}

SummedPushes::SummedPushes(int workers)
    : Consistency(workers), pushed_(left_.size(), false), reads_(left_.size(), kReadsNothing) {}

bool SummedPushes::IsRepeat(int worker, int64_t step) const {
  return CheckWorker(worker, left_.size()).ok() && !left_[worker] && reads_[worker] == kReadsNothing &&
         step >= 0 && step == JoinsAt(worker) - 1;
}

Consistency::Decision SummedPushes::OnPush(int worker, int64_t step) {
  if (IsRepeat(worker, step)) {
    Decision repeat{.repeats = true};
    if (!pushed_[worker]) repeat.may_read = {worker};
    return repeat;
  }
  if (absl::Status status = MayPush(worker, step); !status.ok()) return Refuse(status);
  pushed_[worker] = true;
  ++pushed_count_;
  return UpdateOnceComplete();
}

Consistency::Decision SummedPushes::MakeVersion() {
  Decision decision{.apply_count = pushed_count_, .empty_update = pushed_count_ == 0};
  ++version_;
  for (size_t i = 0; i < pushed_.size(); ++i) {
    if ((!pushed_[i] || left_[i]) && reads_[i] != version_) continue;
    decision.may_read.push_back(static_cast<int>(i));
    reads_[i] = kReadsNothing;
  }
  ForgetPushes();
  return decision;
}

void SummedPushes::ForgetPushes() {
  pushed_.assign(pushed_.size(), false);
  pushed_count_ = 0;
}

bool SummedPushes::AnyReads() const {
  return std::ranges::any_of(reads_, [](int64_t version) { return version != kReadsNothing; });
}

std::vector<bool> SummedPushes::WithReaders(std::vector<bool> busy) const {
  for (size_t i = 0; i < busy.size(); ++i) busy[i] = busy[i] || reads_[i] != kReadsNothing;
  return busy;
}

namespace {

constexpr int kMaxStaleness = 1'000'000;

// One update per push of every worker.
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
    return FailedPrecondition("worker ", worker, " pushed step ", step, ", from the future: step ", version_,
                              " still waits for other workers");
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
      return Refuse(FailedPrecondition("worker ", worker, " cannot join at step ", step,
                                       ": the step is over, or it has joined"));
    }
    left_[worker] = false;
    if (step == version_) return {.may_read = {worker}};
    reads_[worker] = step;
    return {};
  }

  Wait WaitsFor() const override {
    if (pushed_count_ == 0) return {.step = version_};
    return {WorkersWhere(left_.size(), [&](size_t i) { return IsMissing(i); }), version_};
  }

 private:
  // The step cannot be complete without this worker.
  bool IsMissing(size_t worker) const {
    return !pushed_[worker] && !left_[worker] && reads_[worker] == kReadsNothing;
  }

  std::vector<bool> Waiting() const override { return WithReaders(pushed_); }

  Decision UpdateOnceComplete() override {
    // If all remaining workers have joined again and wait for this version, nobody is left to push.
    if (pushed_count_ == 0 && !AnyReads()) return {};
    for (size_t i = 0; i < pushed_.size(); ++i) {
      if (IsMissing(i)) return {};
    }
    return MakeVersion();
  }
};

// Asynchronous and bounded staleness: each push is an update by itself.
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
    return FailedPrecondition("worker ", worker, " pushed step ", step, ", from the future: it may lead by ",
                              staleness_, " steps, and waits for others");
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
      return Refuse(FailedPrecondition("worker ", worker, " cannot join at step ", step,
                                       ": the others are ahead of it, or it has joined"));
    }
    left_[worker] = false;
    next_step_[worker] = step;
    return {.may_read = {worker}};
  }

  bool IsRepeat(int worker, int64_t step) const override {
    return CheckWorker(worker, left_.size()).ok() && !left_[worker] && step >= 0 && step < next_step_[worker];
  }

  Decision ReleaseAll() override {
    const std::vector<bool> waited = std::exchange(waits_, std::vector<bool>(waits_.size()));
    return {.may_read = WorkersWhere(waited.size(), [&](size_t i) { return waited[i]; })};
  }

  Wait WaitsFor() const override {
    if (std::find(waits_.begin(), waits_.end(), true) == waits_.end()) return {};
    const int64_t slowest = Slowest();
    return {WorkersWhere(left_.size(), [&](size_t i) { return !left_[i] && next_step_[i] == slowest; }),
            slowest};
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

  std::vector<bool> Waiting() const override { return waits_; }

  std::vector<int> Released() {
    const int64_t slowest = Slowest();
    return WorkersWhere(waits_.size(), [&](size_t i) {
      const bool reads = waits_[i] && (staleness_ < 0 || clock_[i] <= slowest + staleness_);
      if (reads) waits_[i] = false;
      return reads;
    });
  }

  const int staleness_;         // -1: not bounded
  std::vector<bool> waits_;     // its push is applied but not answered yet
  std::vector<int64_t> clock_;  // of a worker that waits, after its answer
};

absl::Status BadNumber(const std::string& name, const std::string& what) {
  return InvalidArgument("consistency \"", name, "\": ", what);
}

}  // namespace

std::unique_ptr<Consistency> MakeSynchronous(int workers) { return std::make_unique<Synchronous>(workers); }

std::unique_ptr<Consistency> MakeAsynchronous(int workers) {
  return std::make_unique<EachAlone>(workers, -1);
}

std::unique_ptr<Consistency> MakeBoundedStaleness(int workers, int staleness) {
  PSRING_CHECK(staleness >= 1);
  return std::make_unique<EachAlone>(workers, staleness);
}

absl::StatusOr<WaitingRule> ParseWaitingRule(const std::string& name, int workers) {
  using Kind = WaitingRule::Kind;
  if (workers < 1) return InvalidArgument("workers is ", workers, ": there must be at least 1");
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  if (name == "sync") return WaitingRule{.kind = Kind::kSynchronous};
  if (name == "async") return WaitingRule{.kind = Kind::kAsynchronous};
  if (kind != "ssp" && kind != "backup") {
    return InvalidArgument("unknown consistency \"", name, "\"; use sync, async, ssp:K or backup:B");
  }
  int number = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(name.substr(colon + 1), &number) || number < 0) {
    return BadNumber(name, absl::StrCat(kind, " needs a whole number, as in ", kind, ":1"));
  }
  if (kind == "ssp") {
    if (number > kMaxStaleness) {
      return BadNumber(name, absl::StrCat("at most ", kMaxStaleness, " steps; async has no bound"));
    }
    if (number == 0) return WaitingRule{.kind = Kind::kSynchronous};
    return WaitingRule{.kind = Kind::kBoundedStaleness, .number = number};
  }
  if (number >= workers) {
    return BadNumber(name, absl::StrCat("with ", workers, workers == 1 ? " worker" : " workers", " at most ",
                                        workers - 1, " can be spare"));
  }
  return WaitingRule{.kind = Kind::kBackup, .number = number};
}

std::unique_ptr<Consistency> MakeConsistency(const WaitingRule& rule, int workers) {
  switch (rule.kind) {
    case WaitingRule::Kind::kSynchronous:
      return MakeSynchronous(workers);
    case WaitingRule::Kind::kAsynchronous:
      return MakeAsynchronous(workers);
    case WaitingRule::Kind::kBoundedStaleness:
      return MakeBoundedStaleness(workers, rule.number);
    case WaitingRule::Kind::kBackup:
      return MakeBackupBucket(workers, rule.number);
  }
  PSRING_CHECK(false);
  return nullptr;
}

absl::StatusOr<std::unique_ptr<Consistency>> MakeConsistency(const std::string& name, int workers) {
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(name, workers));
  return MakeConsistency(rule, workers);
}

}  // namespace psring
