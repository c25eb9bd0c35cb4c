// How a job of the parameter server begins: workers join, their jobs are held against each other, and once
// all are here and worker 0's weights have arrived, everybody starts from those.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/shard/job_memory.h"

namespace psring {

absl::Status ParameterServer::Join(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  const int worker = joining.worker;
  if (worker < 0 || worker >= options_.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, " is out of range: this server has ", options_.workers, " workers"));
  }
  if (joining.epoch < 0 || joining.epoch > kMostCount) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " names epoch ", joining.epoch));
  }
  MutexLock receive_lock(workers_[worker].receive);
  bool resumes = false, comes_back = false, has_left = false;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(failure_);
    const Attendance& known = attendance_[worker];
    resumes = known.presence == Presence::kJoined && started_ && joining.again &&
              joining.session == known.session && joining.session != 0;
    comes_back = known.presence == Presence::kLost;
    // The answer to its Leave was lost: it will ask once more.
    has_left = known.presence == Presence::kLeft && joining.again && joining.session == known.session &&
               joining.session != 0;
    if (known.presence == Presence::kJoined && !resumes && known.gone_ns != 0) {
      return absl::CancelledError(absl::StrCat("worker ", worker, " is about to be given up; come again"));
    }
    if (known.presence != Presence::kAbsent && !resumes && !comes_back && !has_left) {
      return absl::AlreadyExistsError(absl::StrCat("there is a worker ", worker, " already"));
    }
  }
  if (has_left) {
    {
      MutexLock lock(workers_[worker].mutex);
      workers_[worker].sink = std::move(sink);
    }
    Deliver(worker, {.message = WelcomeMessage(0)});
    return absl::OkStatus();
  }
  if (comes_back && options_.servers > 1) {
    // Each would name another step to begin with.
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " was lost, and several servers let nobody in again"));
  }
  if (comes_back) return ComeBack(joining, std::move(sink));
  if (!resumes) return Enter(joining, std::move(sink));
  if (rule_.kind == WaitingRule::Kind::kBackup) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, "'s stream has broken: with backup workers it is given up"));
  }
  return Resume(worker, std::move(sink));
}

absl::Status ParameterServer::Enter(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  const int worker = joining.worker;
  absl::Status bad_job;
  bool had_begun = false;  // not: by now, for then it has been welcomed with the others
  {
    MutexLock lock(mutex_);
    had_begun = starting_;
    PSRING_RETURN_IF_ERROR(CheckJobLocked(worker, joining.job));
    bad_job = CompareJobLocked(worker, joining.job);
    if (bad_job.ok() && worker == 0 && !restored_) PSRING_RETURN_IF_ERROR(PrepareLocked(joining.job));
    if (bad_job.ok()) {
      last_arrival_ns_ = MonotonicNanos();
      attendance_[worker] = {.presence = Presence::kJoined,
                             .session = joining.session,
                             .again = joining.again,
                             .epoch = joining.epoch};
      jobs_[worker] = joining.job;
      MutexLock worker_lock(workers_[worker].mutex);
      workers_[worker].sink = std::move(sink);
    }
  }
  // After a restart each asynchronous worker goes on as it comes.
  if (bad_job.ok() && had_begun) {
    return Welcome(worker, first_step_[worker], joining.again, /*went_back=*/false);
  }
  // Without this worker the job cannot start: tell those that wait for it at once.
  if (bad_job.ok()) bad_job = StartOnceComplete();
  if (!bad_job.ok()) Abort(bad_job);
  return bad_job;
}

// The stream has broken, and both sides live: they go on where they were.
absl::Status ParameterServer::Resume(int worker, std::shared_ptr<ReplySink> sink) {
  std::shared_ptr<ReplySink> old;
  DropStaged(worker);
  for (Push& push : workers_[worker].pushes) push.answered_again = false;
  {
    MutexLock lock(mutex_);
    attendance_[worker].gone_ns = 0;
    MutexLock worker_lock(workers_[worker].mutex);
    old = std::exchange(workers_[worker].sink, std::move(sink));
    // What could not be sent any more comes again when it is asked for.
    workers_[worker].held.clear();
  }
  if (old != nullptr) old->Abort(absl::CancelledError("this worker has another stream by now"));
  TellResets(worker);
  Deliver(worker, {.message = WelcomeMessage(0)});
  return absl::OkStatus();
}

void ParameterServer::TellResets(int worker) {
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    const uint64_t resets = shard_->resets(bucket);
    if (resets == 0) continue;
    Deliver(worker, {.message = message::Reset{.bucket = bucket, .resets = resets}});
  }
}

// It was lost, and the others have gone on without it. It begins, like all its kind, at one step in all
// buckets: where some are not there yet, it waits for them.
absl::Status ParameterServer::ComeBack(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  const int worker = joining.worker;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(RequireSameJob(job_, joining.job, worker));
    attendance_[worker] = {.presence = Presence::kJoined, .session = joining.session, .again = joining.again};
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].sink = std::move(sink);
  }
  workers_[worker].pushes.assign(job_.buckets.size(), {});
  Replies replies;
  PSRING_RETURN_IF_ERROR(TakeIn(worker, joining.again, replies));
  Finish(std::move(replies));
  return absl::OkStatus();
}

absl::Status ParameterServer::TakeIn(int worker, bool again, Replies& replies) {
  MutexLock lock(admission_mutex_);
  // All at once: the others must not go on between what a bucket is asked and what it is told.
  std::vector<std::unique_ptr<MutexLock>> bucket_locks;
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    bucket_locks.push_back(std::make_unique<MutexLock>(buckets_[i].mutex));
  }
  int64_t step = 0;
  if (admission_.has_value()) {
    PSRING_ASSIGN_OR_RETURN(const Verdict verdict, admission_->OnJoin(worker));
    step = verdict.version;
  }
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const Consistency& consistency = *buckets_[i].consistency;
    // It may be admitted once more to the step in whose sum an earlier push of it stands: not twice.
    if (admission_.has_value() && consistency.JoinsAt(worker) > step)
      ResetBucket(static_cast<int>(i), replies);
    step = std::max(step, consistency.JoinsAt(worker));
  }
  {
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].buckets_to_read = job_.buckets.size();
    workers_[worker].joins_at = step;
    workers_[worker].joins_again = again;
    workers_[worker].pushes_complete = step * static_cast<int64_t>(job_.buckets.size());
    workers_[worker].held.clear();
  }
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    BucketState& state = buckets_[i];
    Consistency::Decision decision = state.consistency->OnJoin(worker, step);
    if (!decision.accept) return absl::FailedPreconditionError(decision.reason);
    Pending& pending = state.pending[worker];
    if (pending.state == Pending::State::kPushed) {  // of its life before: still to be in an update
      pending.joins = true;
    } else {
      pending = {.state = Pending::State::kJoining};
    }
    if (decision.may_read.empty()) continue;
    pending = {};
    MutexLock worker_lock(workers_[worker].mutex);
    if (--workers_[worker].buckets_to_read == 0) {
      replies.emplace_back(worker, Reply{.message = WelcomeMessage(step)});
    }
  }
  return absl::OkStatus();
}

message::Welcome ParameterServer::WelcomeMessage(int64_t step) const {
  absl::Duration patience = options_.worker_timeout;
  if (options_.checkpoints != nullptr) patience = std::max(options_.timeout, patience);
  return {.step = step,
          .epoch = epoch_,
          .incarnation = incarnation_,
          .patience_ms = absl::ToInt64Milliseconds(patience)};
}

absl::Status ParameterServer::Welcome(int worker, int64_t step, bool again, bool went_back,
                                      const std::vector<Reply>* first_weights) {
  message::Welcome welcome = WelcomeMessage(step);
  welcome.went_back = went_back;
  if (!again && (worker != 0 || step > 0 || restored_)) {
    // Its pushes of a step begin together: what a bucket may have had of it before is not waited for.
    std::vector<Reply> weights;
    if (first_weights == nullptr) {
      PSRING_ASSIGN_OR_RETURN(weights, AllWeights());
      first_weights = &weights;
    }
    for (const Reply& bucket : *first_weights) Deliver(worker, bucket);
  }
  TellResets(worker);
  Deliver(worker, {.message = welcome});
  return absl::OkStatus();
}

absl::Status ParameterServer::Restore(const Checkpoint& checkpoint, std::optional<int64_t> epoch) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(ValidateServerJob(checkpoint.job));
  if (checkpoint.job.workers != options_.workers) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint is of a job with ", checkpoint.job.workers,
                                                   " workers, and this server has ", options_.workers,
                                                   "; give another --checkpoint_dir"));
  }
  PSRING_RETURN_IF_ERROR(PrepareLocked(checkpoint.job));
  if (rule_.kind == WaitingRule::Kind::kBackup && checkpoint.job.servers > 1) {
    return absl::FailedPreconditionError(
        "a job with backup workers and several servers does not go on where one of them died; start all of "
        "it again, from a checkpoint of training (--resume), with another --checkpoint_dir for the server");
  }
  if (checkpoint.values.size() != shard_->value_count() || checkpoint.buckets.size() != job_.buckets.size() ||
      checkpoint.samples.size() != job_.buckets.size()) {
    return absl::DataLossError("the checkpoint has not as many values as its job");
  }
  restored_ = true;
  epoch_ = epoch.value_or(0);
  epoch_is_told_ = epoch.has_value();
  notes_arrivals_ = false;  // the order before is not known
  if (options_.arrivals != nullptr) *options_.arrivals = {};
  weights_arrived_ = true;
  was_finished_ = checkpoint.finished;
  const bool each_alone = rule_.each_alone();
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    BucketState& state = buckets_[i];
    MutexLock bucket_lock(state.mutex);
    state.consistency->Restore(checkpoint.buckets[i]);
    state.received_version.assign(job_.workers, state.consistency->version());
    state.may_skip.assign(job_.workers, each_alone);
    PSRING_RETURN_IF_ERROR(shard_->LoadBucket(bucket, checkpoint.values.data()));
    shard_->set_samples_applied(bucket, checkpoint.samples[i]);
  }
  const std::vector<bool>& left =
      checkpoint.buckets.empty() ? std::vector<bool>(job_.workers) : checkpoint.buckets.front().left;
  for (int worker = 0; worker < options_.workers; ++worker) {
    Attendance& known = attendance_[worker];
    if (left[worker]) known.presence = Presence::kLost;
    // It has lost this server, and has to find it again.
    known.gone_ns = MonotonicNanos();
    known.patience_ns = absl::ToInt64Nanoseconds(options_.timeout);
    known.why = "it did not come back to the restarted server";
    int64_t pushes = 0;
    for (const Consistency::State& bucket : checkpoint.buckets) {
      pushes += each_alone ? bucket.next_step[worker] : bucket.version;
      if (each_alone) first_step_[worker] = std::max(first_step_[worker], bucket.next_step[worker]);
    }
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].pushes_complete = pushes;
  }
  if (!each_alone) first_step_.assign(options_.workers, checkpoint.step);
  {
    MutexLock admission_lock(admission_mutex_);
    if (admission_.has_value()) admission_->Restore(checkpoint.step, left);
  }
  if (each_alone || was_finished_) {
    starting_ = true;
    started_ = true;
    passed_[0] = passed_[1] = true;
  }
  if (was_finished_) passed_[kBarriers - 1] = true;
  MutexLock stats_lock(stats_mutex_);
  stats_ = checkpoint.stats;
  stats_.restarts += epoch.has_value() ? 0 : 1;
  return absl::OkStatus();
}

absl::Status ParameterServer::CheckJobLocked(int worker, const ServerJob& job) const {
  if (job.workers != options_.workers) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, "'s job has ", job.workers,
                                                   " workers; this server was started for ",
                                                   options_.workers));
  }
  if (job.server != options_.server || job.servers != options_.servers) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " takes this for server ", job.server,
                                                   " of ", job.servers, "; it is server ", options_.server,
                                                   " of ", options_.servers));
  }
  if (const absl::Status status = ValidateServerJob(job); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("worker ", worker, "'s job: ", status.message()));
  }
  // Once worker 0 is here, the memory is allocated.
  const bool is_first = !restored_ && attendance_[0].presence == Presence::kAbsent;
  return is_first ? RequireMemory(job, device_) : absl::OkStatus();
}

absl::Status ParameterServer::CompareJobLocked(int worker, const ServerJob& job) const {
  if (restored_) return RequireSameJob(job_, job, worker);
  if (worker != 0) {
    return attendance_[0].presence == Presence::kAbsent ? absl::OkStatus()
                                                        : RequireSameJob(jobs_[0], job, worker);
  }
  for (int other = 1; other < options_.workers; ++other) {
    if (attendance_[other].presence != Presence::kAbsent) {
      PSRING_RETURN_IF_ERROR(RequireSameJob(job, jobs_[other], other));
    }
  }
  return absl::OkStatus();
}

absl::Status ParameterServer::PrepareLocked(const ServerJob& job) {
  // First, because another job may follow if this one does not fit.
  PSRING_ASSIGN_OR_RETURN(shard_, ParameterShard::Create(job, device_,
                                                         {.staging_bytes = options_.staging_bytes,
                                                          .reject_nonfinite = options_.reject_nonfinite}));
  job_ = job;
  const size_t bucket_count = job.buckets.size();
  buckets_ = std::make_unique<BucketState[]>(bucket_count);
  for (size_t i = 0; i < bucket_count; ++i) {
    MutexLock lock(buckets_[i].mutex);
    PSRING_ASSIGN_OR_RETURN(buckets_[i].consistency, MakeConsistency(job.consistency, job.workers));
    buckets_[i].backup = dynamic_cast<BackupBucket*>(buckets_[i].consistency.get());
    buckets_[i].summed = dynamic_cast<SummedPushes*>(buckets_[i].consistency.get());
    buckets_[i].pending.resize(job.workers);
    buckets_[i].received_version.resize(job.workers);
    buckets_[i].may_skip.resize(job.workers);
  }
  PSRING_ASSIGN_OR_RETURN(rule_, ParseWaitingRule(job.consistency, job.workers));
  if (rule_.each_alone()) usher_ = std::thread([this] { CallThoseInLine(); });
  notes_arrivals_ = options_.arrivals != nullptr && rule_.each_alone();
  if (notes_arrivals_) {
    *options_.arrivals = {.consistency = job.consistency, .workers = job.workers};
    options_.arrivals->updates.resize(bucket_count);
  }
  if (rule_.kind == WaitingRule::Kind::kBackup && job.server == 0) {
    MutexLock lock(admission_mutex_);
    admission_.emplace(job.workers, rule_.number);
  }
  for (int i = 0; i < job.workers; ++i) workers_[i].pushes.resize(bucket_count);
  workers_[0].weights_bytes.resize(bucket_count);
  workers_[0].weights_whole.resize(bucket_count);
  workers_[0].weights_left = bucket_count;
  weights_arrived_ = bucket_count == 0;
  if (job.start_step > 0 || job.start_beyond > 0) BeginAtLocked(job);
  return absl::OkStatus();
}

void ParameterServer::BeginAtLocked(const ServerJob& job) {
  const int64_t step = job.start_step;
  const Consistency::State state{.version = rule_.each_alone() ? step * job.workers + job.start_beyond : step,
                                 .next_step = std::vector<int64_t>(job.workers, step),
                                 .left = std::vector<bool>(job.workers)};
  for (size_t i = 0; i < job.buckets.size(); ++i) {
    MutexLock lock(buckets_[i].mutex);
    buckets_[i].consistency->Restore(state);
    buckets_[i].received_version.assign(job.workers, state.version);
    shard_->set_samples_applied(static_cast<int>(i), job.start_samples);
  }
  for (int worker = 0; worker < job.workers; ++worker) {
    MutexLock lock(workers_[worker].mutex);
    workers_[worker].pushes_complete = step * static_cast<int64_t>(job.buckets.size());
  }
  first_step_.assign(job.workers, step);
  notes_arrivals_ = false;  // the order before is not known
  if (options_.arrivals != nullptr) *options_.arrivals = {};
  MutexLock lock(admission_mutex_);
  if (admission_.has_value()) admission_->Restore(step, state.left);
}

absl::Status ParameterServer::StartOnceComplete() {
  std::vector<std::pair<int, bool>> present;  // worker, again
  {
    MutexLock lock(mutex_);
    if (!weights_arrived_ || starting_) return absl::OkStatus();
    for (int worker = 0; worker < options_.workers; ++worker) {
      const Attendance& known = attendance_[worker];
      if (known.presence == Presence::kAbsent) return absl::OkStatus();
      if (known.presence == Presence::kJoined) present.emplace_back(worker, known.again);
    }
    starting_ = true;
    for (const Attendance& known : attendance_) {
      if (restored_ && !epoch_is_told_) epoch_ = std::max<int64_t>(epoch_, known.epoch + 1);
    }
  }
  // Before anybody hears of the start: whoever does may push, and the others begin with what was before.
  PSRING_ASSIGN_OR_RETURN(const std::vector<Reply> weights, AllWeights());
  started_ = true;
  // So that whatever happens from here on, there is something to go on from.
  if (writer_ != nullptr && !restored_) {
    TakeCheckpoint(/*finished=*/false);
    writer_->Flush();
  }
  for (const auto& [worker, again] : present) {
    PSRING_RETURN_IF_ERROR(
        Welcome(worker, first_step_[worker], again, /*went_back=*/again || restored_, &weights));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Reply>> ParameterServer::AllWeights(int slot) {
  std::vector<Reply> replies;
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    MutexLock lock(buckets_[bucket].mutex);
    PSRING_ASSIGN_OR_RETURN(Snapshot copy,
                            slot > 0 ? shard_->CopySlot(slot - 1, bucket) : shard_->CopyWeights(bucket));
    replies.push_back({.message = message::Weights{.bucket = bucket}, .weights = std::move(copy)});
  }
  return replies;
}

}  // namespace psring
