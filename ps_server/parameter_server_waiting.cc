// Whose gradients count, and who is not waited for any more: announcements and leavings, which concern all
// buckets at once.

#include <utility>

#include "absl/strings/str_cat.h"
#include "ps_server/parameter_server.h"

namespace psring {

// Every bucket hears of the verdict before the next one is made, so that those that an update is made of, and
// the version that a dropped worker reads, are the same in all of them.
absl::Status ParameterServer::OnAnnounce(int worker, int64_t step, Lane& lane) {
  Replies replies;
  {
    MutexLock lock(admission_mutex_);
    if (!admission_.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " announced step ", step,
                                                        ", and \"", job_.consistency, "\" admits all"));
    }
    PSRING_ASSIGN_OR_RETURN(const Verdict verdict, admission_->OnAnnounce(worker, step));
    if (verdict.admitted) {
      replies.push_back({worker, {.header = {.kind = MessageKind::kAnnounce, .step = step}}});
    } else {
      NoteDropped(worker, verdict.version);
    }
    for (size_t i = 0; i < job_.buckets.size(); ++i) {
      const int bucket = static_cast<int>(i);
      BucketState& state = buckets_[bucket];
      MutexLock bucket_lock(state.mutex);
      if (!verdict.admitted) state.pending[worker] = {.state = Pending::State::kDropped, .step = step};
      const Consistency::Decision decision = state.consistency->OnVerdict(verdict);
      if (absl::Status status = Act(bucket, decision, lane, replies); !status.ok()) {
        return Annotate(status, worker, bucket);
      }
    }
  }
  for (auto& [reader, reply] : replies) Deliver(reader, std::move(reply));
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
  for (const Push& push : workers_[worker].pushes) {
    if (!push.begun) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " leaves in the middle of its push of step ", push.step));
  }
  Replies replies;
  {
    MutexLock lock(admission_mutex_);
    Verdict verdict;
    if (admission_.has_value()) {
      PSRING_ASSIGN_OR_RETURN(verdict, admission_->OnLeave(worker));
    }
    for (size_t i = 0; i < job_.buckets.size(); ++i) {
      const int bucket = static_cast<int>(i);
      BucketState& state = buckets_[bucket];
      MutexLock bucket_lock(state.mutex);
      absl::Status status = Act(bucket, state.consistency->OnLeave(worker), lane, replies);
      if (status.ok() && verdict.complete > 0) {
        const Consistency::Decision decision =
            state.consistency->OnComplete(verdict.version, verdict.complete);
        status = Act(bucket, decision, lane, replies);
      }
      if (!status.ok()) return Annotate(status, worker, bucket);
    }
  }
  workers_[worker].left = true;
  for (auto& [reader, reply] : replies) Deliver(reader, std::move(reply));
  // Answered first: once all have left, the server may be torn down.
  Deliver(worker, {.header = {.kind = MessageKind::kLeave}});
  MutexLock lock(mutex_);
  presence_[worker] = Presence::kLeft;
  changed_.NotifyAll();
  return absl::OkStatus();
}

}  // namespace psring
