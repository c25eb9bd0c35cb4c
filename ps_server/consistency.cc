#include "ps_server/consistency.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace psring {
namespace consistency {

absl::Status CheckWorker(int worker, size_t workers) {
  if (worker >= 0 && static_cast<size_t>(worker) < workers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " is out of range: there are ", workers));
}

absl::Status CheckStep(int worker, int64_t step, int64_t next) {
  if (step == next) return absl::OkStatus();
  if (step == next - 1) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step, " twice"));
  }
  return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step, ", from the ",
                                                    step < next ? "past" : "future", ": its next one is ",
                                                    next));
}

absl::Status MayLeave(int worker, const std::vector<bool>& left, const std::vector<bool>& waits) {
  PSRING_RETURN_IF_ERROR(CheckWorker(worker, left.size()));
  if (left[worker]) return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " has left twice"));
  if (!waits[worker]) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker, " leaves before its push is answered"));
}

Consistency::Decision Refuse(const absl::Status& why) {
  return {.accept = false, .reason = std::string(why.message())};
}

}  // namespace consistency

namespace {

using consistency::CheckStep;
using consistency::CheckWorker;
using consistency::MayLeave;
using consistency::Refuse;

constexpr int kMostStaleness = 1'000'000;

absl::Status HasLeft(int worker) {
  return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " has left, and still pushes"));
}

class Synchronous : public Consistency {
 public:
  explicit Synchronous(int workers) : pushed_(workers, false), left_(workers, false), remaining_(workers) {}

  std::string name() const override { return "sync"; }
  int64_t version() const override { return version_; }

  absl::Status MayPush(int worker, int64_t step) const override {
    PSRING_RETURN_IF_ERROR(CheckWorker(worker, pushed_.size()));
    if (left_[worker]) return HasLeft(worker);
    // Every step makes a version, so the step to push now is the version to build on.
    PSRING_RETURN_IF_ERROR(CheckStep(worker, step, version_ + (pushed_[worker] ? 1 : 0)));
    if (!pushed_[worker]) return absl::OkStatus();
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
    if (absl::Status status = MayLeave(worker, left_, pushed_); !status.ok()) return Refuse(status);
    left_[worker] = true;
    --remaining_;
    return UpdateOnceComplete();
  }

  Wait WaitsFor() const override {
    Wait wait{.step = version_};
    for (size_t i = 0; waiting_ > 0 && i < pushed_.size(); ++i) {
      if (!pushed_[i] && !left_[i]) wait.workers.push_back(static_cast<int>(i));
    }
    return wait;
  }

 private:
  Decision UpdateOnceComplete() {
    if (waiting_ == 0 || waiting_ < remaining_) return {};
    Decision decision{.apply_count = waiting_};
    for (size_t i = 0; i < pushed_.size(); ++i) {
      if (pushed_[i]) decision.may_read.push_back(static_cast<int>(i));
    }
    pushed_.assign(pushed_.size(), false);
    waiting_ = 0;
    ++version_;
    return decision;
  }

  std::vector<bool> pushed_;  // towards the next version
  std::vector<bool> left_;
  int remaining_;
  int waiting_ = 0;
  int64_t version_ = 0;
};

// Both kinds in which a push is an update by itself: without `staleness` nobody waits.
class EachAlone : public Consistency {
 public:
  EachAlone(int workers, int staleness)
      : staleness_(staleness), next_step_(workers, 0), waits_(workers, false), left_(workers, false) {}

  std::string name() const override { return bounded() ? absl::StrCat("ssp:", staleness_) : "async"; }
  int64_t version() const override { return version_; }

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
    if (absl::Status status = MayPush(worker, step); !status.ok()) return Refuse(status);
    ++next_step_[worker];
    ++version_;
    waits_[worker] = true;
    return {.apply_count = 1, .may_read = Released()};
  }

  Decision OnLeave(int worker) override {
    if (absl::Status status = MayLeave(worker, left_, waits_); !status.ok()) return Refuse(status);
    left_[worker] = true;
    return {.may_read = Released()};
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
  bool bounded() const { return staleness_ >= 0; }

  // Pushes of the worker that has made fewest.
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
      if (!waits_[i] || (bounded() && next_step_[i] > slowest + staleness_)) continue;
      waits_[i] = false;
      released.push_back(static_cast<int>(i));
    }
    return released;
  }

  const int staleness_;  // -1: as much as there is
  std::vector<int64_t> next_step_;
  std::vector<bool> waits_;  // its push is applied, its pull not answered yet
  std::vector<bool> left_;
  int64_t version_ = 0;
};

absl::Status BadNumber(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("consistency \"", name, "\": ", what));
}

}  // namespace

Consistency::Decision Consistency::OnVerdict(const Verdict&) {
  return Refuse(absl::FailedPreconditionError(absl::StrCat("\"", name(), "\" drops no gradients")));
}

Consistency::Decision Consistency::OnComplete(int64_t, int) { return OnVerdict({}); }

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
  if (workers < 1) {
    return absl::InvalidArgumentError(absl::StrCat("workers is ", workers, ": there must be at least 1"));
  }
  const size_t colon = name.find(':');
  const std::string word = name.substr(0, colon);
  if (name == "sync") return WaitingRule{.kind = Kind::kSynchronous};
  if (name == "async") return WaitingRule{.kind = Kind::kAsynchronous};
  if (word != "ssp" && word != "backup") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown consistency \"", name, "\": there are sync, async, ssp:K and backup:B"));
  }
  int number = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(name.substr(colon + 1), &number) || number < 0) {
    return BadNumber(name, absl::StrCat(word, " needs a whole number, as in ", word, ":1"));
  }
  if (word == "ssp") {
    if (number > kMostStaleness) {
      return BadNumber(name, absl::StrCat("at most ", kMostStaleness, " steps; async has no bound"));
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

absl::StatusOr<std::unique_ptr<Consistency>> MakeConsistency(const std::string& name, int workers) {
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(name, workers));
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
  return absl::InternalError("a waiting rule of no kind");
}

}  // namespace psring
