// Whose gradients count, and who is not waited for any more: announcements and leavings, which concern all
// buckets at once.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

absl::StatusOr<Verdict> ParameterServer::VerdictOf(int worker, const message::Announcement& announcement) {
  if (admission_.has_value()) return admission_->OnAnnounce(worker, announcement.step);
  const bool carried = job_.server > 0 && job_.consistency.starts_with("backup");
  if (!carried) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " announced step ",
                                                      announcement.step, ", and \"", job_.consistency,
                                                      "\" admits all"));
  }
  const Verdict verdict{
      .worker = worker,
      .admitted = announcement.step >= 0 && !announcement.dropped,
      .version = announcement.step >= 0 && !announcement.dropped ? announcement.step : announcement.version,
      .complete = static_cast<int>(announcement.complete)};
  const bool sound = announcement.complete >= 0 && announcement.complete <= options_.workers &&
                     (announcement.step >= 0 || announcement.complete > 0) &&
                     (!announcement.dropped || announcement.version > announcement.step);
  if (sound) return verdict;
  return absl::InvalidArgumentError(absl::StrCat(
      "worker ", worker, " carries a verdict on step ", announcement.step, " that makes no sense: version ",
      announcement.version, ", ", announcement.complete, " workers"));
}

// Every bucket hears of the verdict before the next one is made, so that those that an update is made of, and
// the version that a dropped worker reads, are the same in all of them.
absl::Status ParameterServer::OnAnnounce(int worker, const message::Announcement& announcement, Lane& lane) {
  const int64_t step = announcement.step;
  const bool completes_only = step < 0;
  Replies replies;
  {
    MutexLock lock(admission_mutex_);
    PSRING_ASSIGN_OR_RETURN(const Verdict verdict, VerdictOf(worker, announcement));
    if (verdict.admitted && admission_.has_value()) {
      replies.push_back({worker, {.message = message::Admitted{.step = step, .complete = verdict.complete}}});
    } else if (!verdict.admitted && !completes_only) {
      NoteDropped(worker, verdict.version);
    }
    for (size_t i = 0; i < job_.buckets.size(); ++i) {
      const int bucket = static_cast<int>(i);
      BucketState& state = buckets_[bucket];
      MutexLock bucket_lock(state.mutex);
      const bool dropped = !verdict.admitted && !completes_only;
      Verdict of_bucket = verdict;
      // A carried verdict may be overtaken by the step that it names. Newer weights do no harm then: that
      // step is complete, so the gradient that the worker makes of them is sure to be dropped as well.
      if (dropped) of_bucket.version = std::max(verdict.version, state.consistency->version());
      const Consistency::Decision decision = completes_only
                                                 ? state.backup->OnComplete(verdict.version, verdict.complete)
                                                 : state.backup->OnVerdict(of_bucket);
      // A verdict that is refused must not replace a push that waits.
      if (dropped && decision.accept) {
        state.pending[worker] = {.state = Pending::State::kDropped, .step = step};
      }
      if (absl::Status status = Act(bucket, decision, lane, replies); !status.ok()) {
        return Annotate(status, worker, bucket);
      }
    }
  }
  PSRING_RETURN_IF_ERROR(OnceAllAreReduced(lane, replies));
  Finish(std::move(replies));
  return absl::OkStatus();
}

void ParameterServer::NoteDropped(int worker, int64_t next_step) {
  {
    MutexLock lock(workers_[worker].mutex);
    workers_[worker].pushes_complete = next_step * static_cast<int64_t>(job_.buckets.size());
  }
  MutexLock lock(stats_mutex_);
  ++stats_.dropped_gradients;
  ++stats_.worker_dropped[worker];
}

// Those that wait may have waited for this worker alone.
absl::Status ParameterServer::OnLeave(int worker, Lane& lane) {
  if (workers_[worker].left) {  // and was not told so, since its stream broke
    Deliver(worker, {.message = message::Left{}});
    return absl::OkStatus();
  }
  for (const Push& push : workers_[worker].pushes) {
    if (push.step < 0 || push.whole) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " leaves in the middle of its push of step ", push.step));
  }
  Replies replies;
  Verdict verdict;
  {
    MutexLock lock(admission_mutex_);
    if (admission_.has_value()) {
      PSRING_ASSIGN_OR_RETURN(verdict, admission_->OnLeave(worker));
    }
    for (size_t i = 0; i < job_.buckets.size(); ++i) {
      const int bucket = static_cast<int>(i);
      BucketState& state = buckets_[bucket];
      MutexLock bucket_lock(state.mutex);
      absl::Status status = Act(bucket, state.consistency->OnLeave(worker), lane, replies);
      if (status.ok() && verdict.complete > 0) {
        const Consistency::Decision decision = state.backup->OnComplete(verdict.version, verdict.complete);
        status = Act(bucket, decision, lane, replies);
      }
      if (!status.ok()) return Annotate(status, worker, bucket);
    }
  }
  PSRING_RETURN_IF_ERROR(OnceAllAreReduced(lane, replies));
  workers_[worker].left = true;
  Finish(std::move(replies));
  // Answered first: once all have left, the server may be torn down.
  Deliver(worker, {.message = message::Left{.version = verdict.complete > 0 ? verdict.version : 0,
                                            .complete = verdict.complete}});
  {
    MutexLock lock(mutex_);
    attendance_[worker].presence = Presence::kLeft;
    changed_.NotifyAll();
  }
  ReleaseBarriers();
  return absl::OkStatus();
}

absl::Status ParameterServer::OnBarrier(int worker, int64_t number) {
  if (number < 0 || number >= kBarriers) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " waits at barrier ", number));
  }
  {
    MutexLock lock(mutex_);
    attendance_[worker].barrier = static_cast<int>(number);
  }
  ReleaseBarriers();
  return absl::OkStatus();
}

void ParameterServer::ReleaseBarriers() {
  std::vector<std::pair<int, int>> released;  // worker, barrier
  bool finished = false;
  {
    MutexLock lock(mutex_);
    for (int number = 0; number < kBarriers; ++number) {
      int waiting = 0, missing = 0;
      for (const Attendance& worker : attendance_) {
        if (worker.presence != Presence::kJoined && worker.presence != Presence::kAbsent) continue;
        ++(worker.barrier == number ? waiting : missing);
      }
      if (waiting == 0 || (missing > 0 && !passed_[number])) continue;
      finished = finished || (number == kBarriers - 1 && !passed_[number]);
      passed_[number] = true;
      for (int worker = 0; worker < options_.workers; ++worker) {
        if (std::exchange(attendance_[worker].barrier,
                          attendance_[worker].barrier == number ? -1 : attendance_[worker].barrier) ==
            number) {
          released.emplace_back(worker, number);
        }
      }
    }
  }
  // Whoever is told may leave at once: should the server die then, its next life must not wait for it.
  if (finished && writer_ != nullptr) {
    TakeCheckpoint(/*finished=*/true);
    writer_->Flush();
  }
  for (const auto& [worker, number] : released) {
    Deliver(worker, {.message = message::BarrierPassed{.number = number}});
  }
}

}  // namespace psring
