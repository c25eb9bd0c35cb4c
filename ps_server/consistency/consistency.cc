#include "ps_server/consistency/consistency.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/consistency/admission.h"

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

absl::Status HasLeft(int worker) {
  return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " has left and must not push"));
}

Consistency::Decision Refuse(const absl::Status& why) {
  return {.accept = false, .reason = std::string(why.message())};
}

}  // namespace consistency

void Consistency::Restore(const State& state) {
  version_ = state.version;
  left_ = state.left;
  if (!next_step_.empty()) next_step_ = state.next_step;
}

SummedPushes::SummedPushes(int workers)
    : Consistency(workers), pushed_(left_.size(), false), reads_(left_.size(), kReadsNothing) {}

bool SummedPushes::IsRepeat(int worker, int64_t step) const {
  return consistency::CheckWorker(worker, left_.size()).ok() && !left_[worker] &&
         reads_[worker] == kReadsNothing && step >= 0 && step == JoinsAt(worker) - 1;
}

Consistency::Decision SummedPushes::TakePush(int worker, int64_t step) {
  if (IsRepeat(worker, step)) {
    Decision repeat{.repeats = true};
    if (!pushed_[worker]) repeat.may_read = {worker};
    return repeat;
  }
  if (absl::Status status = MayPush(worker, step); !status.ok()) return consistency::Refuse(status);
  pushed_[worker] = true;
  ++pushed_count_;
  return {};
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

std::vector<bool> SummedPushes::Waiting(std::vector<bool> busy) const {
  for (size_t i = 0; i < busy.size(); ++i) busy[i] = busy[i] || reads_[i] != kReadsNothing;
  return busy;
}

namespace {

constexpr int kMaxStaleness = 1'000'000;

absl::Status BadNumber(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("consistency \"", name, "\": ", what));
}

}  // namespace

absl::StatusOr<WaitingRule> ParseWaitingRule(const std::string& name, int workers) {
  using Kind = WaitingRule::Kind;
  if (workers < 1) {
    return absl::InvalidArgumentError(absl::StrCat("workers is ", workers, ": there must be at least 1"));
  }
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  if (name == "sync") return WaitingRule{.kind = Kind::kSynchronous};
  if (name == "async") return WaitingRule{.kind = Kind::kAsynchronous};
  if (kind != "ssp" && kind != "backup") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown consistency \"", name, "\"; use sync, async, ssp:K or backup:B"));
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
  return absl::InternalError("a waiting rule without a kind");
}

}  // namespace psring
