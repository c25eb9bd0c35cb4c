// What a lost worker leaves behind, and how the others go on without it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

void ParameterServer::Disconnected(int worker, const ReplySink* sink, const std::string& why) {
  MutexLock receive_lock(workers_[worker].receive);
  MutexLock lock(mutex_);
  {
    MutexLock worker_lock(workers_[worker].mutex);
    if (workers_[worker].sink.get() != sink) return;
    workers_[worker].sink.reset();
  }
  DropStaged(worker);
  Attendance& known = attendance_[worker];
  if (known.presence != Presence::kJoined) return;
  known.gone_ns = MonotonicNanos();
  const bool may_return = started_ && known.session != 0;
  known.patience_ns = may_return ? absl::ToInt64Nanoseconds(options_.worker_timeout) : 0;
  known.why = why;
  poked_ = true;
  changed_.NotifyAll();
}

// A worker that does what does not belong has no place in the job any more.
void ParameterServer::TurnAway(int worker, const ReplySink* from, const absl::Status& why) {
  {
    MutexLock lock(workers_[worker].mutex);
    if (workers_[worker].sink.get() != from) return;
  }
  if (why.code() == absl::StatusCode::kInternal || !GoesOnWithout(worker)) return Abort(why);
  std::shared_ptr<ReplySink> sink;
  {
    MutexLock lock(mutex_);
    Attendance& known = attendance_[worker];
    if (known.presence != Presence::kJoined) return;
    known.gone_ns = MonotonicNanos();
    known.patience_ns = 0;
    known.session = 0;
    known.why = std::string(why.message());
    poked_ = true;
    changed_.NotifyAll();
    MutexLock worker_lock(workers_[worker].mutex);
    sink = std::exchange(workers_[worker].sink, nullptr);
  }
  if (sink != nullptr) sink->Abort(why);
}

// Of several servers each loses the worker by itself, when its own stream of it breaks: what the worker was
// pushing just then may be in the update of one and not of another. Whom one has lost the others lose as
// well, for its client gives up.
bool ParameterServer::GoesOnWithout(int worker) {
  // Whoever is not there at the start is missed; at a second one it may have died with the server.
  if (!started_ && !restored_) return false;
  if (options_.on_worker_loss == OnWorkerLoss::kStop) return false;
  if (options_.on_worker_loss == OnWorkerLoss::kByMode && !rule_.each_alone()) return false;
  // Of a step whose norm is not known yet no bucket can be taken back.
  if (job_.clip_norm > 0) return false;
  // What the first server decided without the worker nobody would carry to the others.
  if (options_.servers > 1 && rule_.kind == WaitingRule::Kind::kBackup) return false;
  MutexLock lock(mutex_);
  for (int other = 0; other < options_.workers; ++other) {
    const Presence presence = attendance_[other].presence;
    if (other != worker && presence != Presence::kLost) return true;
  }
  return false;  // nobody remains who could go on
}

void ParameterServer::Lose(int worker, const std::string& why, Lane& lane) {
  const std::string lost = absl::StrCat("worker ", worker, " was lost: ", why);
  if (!GoesOnWithout(worker)) return Abort(absl::UnavailableError(lost));
  Replies replies;
  std::shared_ptr<ReplySink> sink;
  {
    MutexLock receive_lock(workers_[worker].receive);
    {
      MutexLock lock(mutex_);
      Attendance& known = attendance_[worker];
      // It may have come back while we came here.
      if (known.gone_ns == 0 ||
          (known.presence != Presence::kJoined && known.presence != Presence::kAbsent)) {
        return;
      }
      MutexLock worker_lock(workers_[worker].mutex);
      sink = std::exchange(workers_[worker].sink, nullptr);
    }
    absl::Status status = TakeOut(worker, lane, replies);
    if (status.ok()) status = OnceAllAreReduced(lane, replies);
    if (!status.ok()) return Abort(status);
    int64_t step = 0;
    for (const Push& push : workers_[worker].pushes) step = std::max(step, push.step);
    {
      MutexLock lock(mutex_);
      attendance_[worker].presence = Presence::kLost;
      attendance_[worker].gone_ns = 0;
      changed_.NotifyAll();
    }
    MutexLock stats_lock(stats_mutex_);
    stats_.lost_workers.push_back(worker);
    stats_.lost_at_step.push_back(step);
  }
  if (sink != nullptr) sink->Abort(absl::UnavailableError(lost));
  options_.on_note(absl::StrCat(lost, "; the others go on"));
  Finish(std::move(replies));
  ReleaseBarriers();
  // Those that came back to a restarted server may have waited for this one to begin.
  if (absl::Status status = StartOnceComplete(); !status.ok()) Abort(status);
}

void ParameterServer::DropStaged(int worker) {
  if (!started_) return;
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    Push& push = workers_[worker].pushes[i];
    if (push.step < 0 || push.whole || !shard_->is_staged(worker, bucket)) continue;
    shard_->DropPush(worker, bucket);
    push.step = -1;
  }
  shard_->EndStep(worker);
  shard_->staging().LeaveLine(worker);
}

absl::Status ParameterServer::TakeOut(int worker, Lane& lane, Replies& replies) {
  DropStaged(worker);
  MutexLock lock(admission_mutex_);
  const Verdict verdict = admission_.has_value() ? admission_->OnLost(worker) : Verdict{};
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    BucketState& state = buckets_[bucket];
    MutexLock bucket_lock(state.mutex);
    Push& push = workers_[worker].pushes[bucket];
    if (push.step >= 0 && !push.whole) {
      const bool in_the_sum = push.high_water > 0 && push.resets == shard_->resets(bucket);
      if (shard_->adds_as_it_arrives() && in_the_sum) ResetBucket(bucket, replies);
      shard_->DropPush(worker, bucket);
      push.step = -1;
    }
    Pending& pending = state.pending[worker];
    // A whole push still counts; nobody is there to be answered.
    if (pending.state != Pending::State::kPushed) pending = {};
    pending.joins = false;
    PSRING_RETURN_IF_ERROR(Act(bucket, state.consistency->OnLost(worker), lane, replies));
    if (verdict.complete > 0) {
      PSRING_RETURN_IF_ERROR(
          Act(bucket, state.backup->OnComplete(verdict.version, verdict.complete), lane, replies));
    }
  }
  return absl::OkStatus();
}

// Part of a gradient stands in the sum, and no one can tell which: the sum is emptied, and all that had their
// gradients in it send them again. They have them until they are answered.
void ParameterServer::ResetBucket(int bucket, Replies& replies) {
  BucketState& state = buckets_[bucket];
  const uint64_t resets = shard_->Reset(bucket);
  PSRING_CHECK(state.summed != nullptr);  // pushes that are updates by themselves stand in no sum
  state.summed->OnReset();
  for (int worker = 0; worker < options_.workers; ++worker) {
    Pending& pending = state.pending[worker];
    if (pending.state == Pending::State::kPushed && pending.joins) {
      pending = {.state = Pending::State::kJoining};  // it sends nothing again, and waits as before
    } else if (pending.state == Pending::State::kPushed) {
      pending = {};
      MutexLock lock(workers_[worker].mutex);
      --workers_[worker].pushes_complete;
    }
    replies.emplace_back(worker, Reply{.message = message::Reset{.bucket = bucket, .resets = resets}});
  }
}

}  // namespace psring
