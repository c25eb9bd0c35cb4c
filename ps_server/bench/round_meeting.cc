#include "ps_server/bench/round_meeting.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"

namespace psring {
namespace {

constexpr absl::Duration kMeetEvery = absl::Milliseconds(100);

std::string Describe(const RoundCall& call) {
  return absl::StrCat("a ", Name(call.kind), " round of ", call.count * sizeof(float), " bytes");
}

absl::Status Broken() {
  return absl::UnavailableError("the control round: a worker's connection ended in the middle of it");
}

}  // namespace

absl::Status RoundMeeting::Join(int worker) {
  MutexLock lock(mutex_);
  if (worker < 0 || static_cast<size_t>(worker) >= connected_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the control round: worker ", worker,
                                                   " is out of range: there are ", connected_.size()));
  }
  if (connected_[worker]) {
    return absl::AlreadyExistsError(
        absl::StrCat("the control round: there is a worker ", worker, " already"));
  }
  connected_[worker] = true;
  return absl::OkStatus();
}

void RoundMeeting::Leave(int worker) {
  MutexLock lock(mutex_);
  connected_[worker] = false;
  broken_ = true;
  if (here_ == 0 || call_.stage == 0) return;
  EndMeetingLocked(Broken());
}

void RoundMeeting::StopWaitingLocked(int worker) {
  if (std::exchange(waiting_[worker], nullptr) != nullptr) --here_;
}

void RoundMeeting::EndMeetingLocked(const absl::Status& outcome) {
  outcome_ = outcome;
  std::ranges::fill(waiting_, nullptr);
  here_ = 0;
  ++meetings_;
  changed_.NotifyAll();
}

absl::Status RoundMeeting::Wait(int worker, const RoundCall& call, const std::function<bool()>& has_gone,
                                const std::function<absl::Status()>& last) {
  MutexLock lock(mutex_);
  if (call.stage > 0 && broken_) return Broken();
  for (size_t i = 0; i < waiting_.size() && call != call_; ++i) {
    if (waiting_[i] != nullptr && waiting_[i]()) StopWaitingLocked(static_cast<int>(i));
  }
  if (call != call_ && here_ > 0) {
    return absl::InvalidArgumentError(absl::StrCat("the control round: this worker asks for ", Describe(call),
                                                   ", and the others for ", Describe(call_)));
  }
  call_ = call;
  waiting_[worker] = has_gone;
  ++here_;
  const int64_t meeting = meetings_;
  if (here_ == connected_.size()) {
    if (call.stage == 0) broken_ = false;
    EndMeetingLocked(last());
    return outcome_;
  }
  const MonotonicTime deadline = MonotonicNow() + timeout_;
  absl::Status why;
  while (meeting == meetings_ && why.ok()) {
    if (over_) {
      why = absl::CancelledError("the control round: the server ends");
    } else if (MonotonicNow() >= deadline) {
      why = absl::DeadlineExceededError("the control round: a worker did not arrive in time");
    } else if (waiting_[worker] == nullptr ||
               (!changed_.WaitUntil(mutex_, std::min(deadline, MonotonicNow() + kMeetEvery)) && has_gone())) {
      why = absl::UnavailableError("the control round: the connection ended");
    }
  }
  if (meeting != meetings_) return outcome_;
  StopWaitingLocked(worker);
  return why;
}

void RoundMeeting::End() {
  MutexLock lock(mutex_);
  over_ = true;
  changed_.NotifyAll();
}

}  // namespace psring
