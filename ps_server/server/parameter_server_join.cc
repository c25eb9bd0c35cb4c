// How a job begins, and continues after a restart: workers join, their jobs are compared, and when all have
// joined and worker 0's weights are complete, all start with these weights.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/shard/job_memory.h"

namespace psring {
absl::Status ParameterServer::Join(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  using Entry = Membership::Entry;
  const int worker = joining.worker;
  if (worker < 0 || worker >= options_.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, " is out of range: this server has ", options_.workers, " workers"));
  }
  if (joining.epoch < 0 || joining.epoch > kMostCount) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " names epoch ", joining.epoch));
  }
  MutexLock receive_lock(workers_[worker].receive);
  Entry entry = Entry::kFirst;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(failure_);
    PSRING_ASSIGN_OR_RETURN(entry, members_.EntryOf(joining, started_));
  }
  // A push of rows is not repeated. Before a first entry, another worker may be writing rows_.
  if ((entry == Entry::kResumes || entry == Entry::kReturns) && rows_ != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " cannot reconnect to a job with tables"));
  }
  switch (entry) {
    case Entry::kFirst:
      return Enter(joining, std::move(sink));
    case Entry::kResumes:
      if (rule_.kind == WaitingRule::Kind::kBackup) {
        return absl::FailedPreconditionError(absl::StrCat(
            "worker ", worker, " cannot reconnect: a job with backup workers continues without it"));
      }
      return Resume(worker, std::move(sink));
    case Entry::kReturns:
      if (options_.servers > 1) {  // each server would choose another step
        return absl::FailedPreconditionError(
            absl::StrCat("worker ", worker, " was lost; it cannot join several servers again"));
      }
      return Return(joining, std::move(sink));
    case Entry::kAnsweredAgain: {
      {
        MutexLock lock(workers_[worker].mutex);
        workers_[worker].sink = std::move(sink);
      }
      Deliver(worker, {.message = WelcomeMessage(0)});
      return absl::OkStatus();
    }
  }
  return absl::InternalError("a Join without a meaning");
}

absl::Status ParameterServer::Enter(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  const int worker = joining.worker;
  bool had_begun = false;  // before this Join; otherwise all get their Welcome together
  {
    MutexLock lock(mutex_);
    had_begun = starting_;
    const absl::Status fits = AcceptJobLocked(worker, joining.job);
    rejections_[worker] = std::string(fits.message());
    PSRING_RETURN_IF_ERROR(fits);
    last_arrival_ns_ = MonotonicNanos();
    members_.Join(joining);
    jobs_[worker] = joining.job;
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].sink = std::move(sink);
  }
  // After a restart each asynchronous worker continues when it joins.
  if (had_begun) return SendWelcome(worker, first_step_[worker], joining.again, /*went_back=*/false);
  const absl::Status started = StartOnceComplete();
  if (!started.ok()) Abort(started);
  return started;
}

// The stream broke, but both processes still run: they continue where they were.
absl::Status ParameterServer::Resume(int worker, std::shared_ptr<ReplySink> sink) {
  std::shared_ptr<ReplySink> old;
  DropStaged(worker);
  for (Push& push : workers_[worker].pushes) push.answered_again = false;
  {
    MutexLock lock(mutex_);
    members_.Resume(worker);
    MutexLock worker_lock(workers_[worker].mutex);
    old = std::exchange(workers_[worker].sink, std::move(sink));
    workers_[worker].held.clear();  // answered when the worker repeats its pushes
  }
  if (old != nullptr) old->Abort(absl::CancelledError("this worker has opened another stream"));
  SendResets(worker);
  Deliver(worker, {.message = WelcomeMessage(0)});
  return absl::OkStatus();
}

// The worker was lost, and the others have continued.
absl::Status ParameterServer::Return(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  const int worker = joining.worker;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(RequireSameJob(job_, joining.job, worker));
    members_.Join(joining);
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].sink = std::move(sink);
  }
  workers_[worker].pushes.assign(job_.buckets.size(), {});
  Replies replies;
  PSRING_RETURN_IF_ERROR(rounds_->OnJoin(worker, joining.again, replies));
  Finish(std::move(replies));
  return absl::OkStatus();
}

void ParameterServer::SendResets(int worker) {
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    const uint64_t resets = shard_->resets(bucket);
    if (resets > 0) Deliver(worker, {.message = message::Reset{.bucket = bucket, .resets = resets}});
  }
}

message::Welcome ParameterServer::WelcomeMessage(int64_t step) const {
  absl::Duration patience = options_.worker_timeout;
  if (checkpointing_.enabled()) patience = std::max(options_.timeout, patience);
  if (rows_ != nullptr) patience = absl::ZeroDuration();
  return {.step = step,
          .epoch = epoch_,
          .incarnation = incarnation_,
          .patience_ms = absl::ToInt64Milliseconds(patience)};
}

absl::Status ParameterServer::SendWelcome(int worker, int64_t step, bool again, bool went_back,
                                          const std::vector<Reply>* first_weights) {
  message::Welcome welcome = WelcomeMessage(step);
  welcome.went_back = went_back;
  if (!again && (worker != 0 || step > 0 || restored_)) {
    std::vector<Reply> weights;
    if (first_weights == nullptr) {
      PSRING_ASSIGN_OR_RETURN(weights, rounds_->Weights());
      first_weights = &weights;
    }
    for (const Reply& bucket : *first_weights) Deliver(worker, bucket);
  }
  SendResets(worker);
  Deliver(worker, {.message = welcome});
  return absl::OkStatus();
}

absl::Status ParameterServer::Restore(const Checkpoint& checkpoint, std::optional<int64_t> epoch) {
  MutexLock lock(mutex_);
  const ServerJob& job = checkpoint.job;
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  if (!job.tables.empty()) return absl::UnimplementedError("a checkpoint of a job with tables");
  if (job.workers != options_.workers || job.server != options_.server || job.servers != options_.servers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint is of a job with ", job.workers, " workers, of server ", job.server,
                     " of ", job.servers, ", and this is server ", options_.server, " of ", options_.servers,
                     " with ", options_.workers, " workers; give another --checkpoint_dir"));
  }
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(job.consistency, job.workers));
  if (rule.kind == WaitingRule::Kind::kBackup && job.servers > 1) {
    return absl::FailedPreconditionError(
        "a job with backup workers and several servers cannot continue after the loss of a server; start it "
        "again from a checkpoint of training (--resume), with another --checkpoint_dir for the server");
  }
  PSRING_RETURN_IF_ERROR(ValidateCheckpoint(checkpoint));
  PSRING_RETURN_IF_ERROR(PrepareLocked(job));
  restored_ = true;
  epoch_ = epoch.value_or(0);
  epoch_is_given_ = epoch.has_value();
  weights_arrived_ = true;
  was_finished_ = checkpoint.finished;
  PSRING_RETURN_IF_ERROR(rounds_->Restore(checkpoint));
  const bool each_alone = rule_.each_alone();
  for (int worker = 0; worker < options_.workers; ++worker) {
    const bool lost = !checkpoint.buckets.empty() && checkpoint.buckets.front().left[worker];
    // The worker lost its connection when the server died, and has to find the restarted one.
    members_.AwaitReturn(worker, lost, MonotonicNanos(), absl::ToInt64Nanoseconds(options_.timeout));
    int64_t pushes = 0;
    for (const Consistency::State& bucket : checkpoint.buckets) {
      pushes += each_alone ? bucket.next_step[worker] : bucket.version;
      if (each_alone) first_step_[worker] = std::max(first_step_[worker], bucket.next_step[worker]);
    }
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].pushes_complete = pushes;
    workers_[worker].steps_answered = checkpoint.step;
  }
  if (!each_alone) first_step_.assign(options_.workers, checkpoint.step);
  if (each_alone || was_finished_) {
    starting_ = true;
    started_ = true;
    members_.PassBarriers(Membership::kBarriers - 1);
  }
  if (was_finished_) members_.PassBarriers(Membership::kBarriers);
  MutexLock stats_lock(stats_mutex_);
  stats_ = checkpoint.stats;
  stats_.restarts += epoch.has_value() ? 0 : 1;
  return absl::OkStatus();
}

absl::Status ParameterServer::AcceptJobLocked(int worker, const ServerJob& job) {
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
  if (restored_) return RequireSameJob(job_, job, worker);
  // Those that have joined have the same job.
  for (int other = 0; other < options_.workers; ++other) {
    if (members_.presence(other) == Membership::Presence::kAbsent) continue;
    PSRING_RETURN_IF_ERROR(RequireSameJob(jobs_[other], job, worker, other));
    break;
  }
  if (worker == 0) return PrepareLocked(job);
  // Once worker 0 is here, the memory is allocated.
  const bool is_first = members_.presence(0) == Membership::Presence::kAbsent;
  return is_first ? RequireMemory(job, device_) : absl::OkStatus();
}

absl::Status ParameterServer::PrepareLocked(const ServerJob& job) {
  // First, because another job may follow if this one does not fit into memory.
  PSRING_ASSIGN_OR_RETURN(shard_, ParameterShard::Create(job, device_,
                                                         {.staging_bytes = options_.staging_bytes,
                                                          .reject_nonfinite = options_.reject_nonfinite}));
  PSRING_ASSIGN_OR_RETURN(rule_, ParseWaitingRule(job.consistency, job.workers));
  job_ = job;
  const size_t bucket_count = job.buckets.size();
  checkpointing_.Begin(rule_.each_alone(), job.workers, bucket_count);
  PSRING_ASSIGN_OR_RETURN(rows_, RowRounds::Create(job, options_.reject_nonfinite));
  PSRING_ASSIGN_OR_RETURN(rounds_, BucketRounds::Create(job, *shard_, workers_.get(), checkpointing_,
                                                        rows_.get(), options_.arrivals));
  if (rule_.each_alone()) queue_thread_ = std::thread([this] { CallQueuedWorkers(); });
  for (int i = 0; i < job.workers; ++i) workers_[i].pushes.resize(bucket_count);
  workers_[0].weights_bytes.resize(bucket_count);
  workers_[0].weights_whole.resize(bucket_count);
  workers_[0].weights_left = bucket_count;
  weights_arrived_ = bucket_count == 0;
  if (job.start_step == 0 && job.start_beyond == 0) return absl::OkStatus();
  // The job continues from a checkpoint of its workers.
  rounds_->BeginAt(job.start_step, job.start_samples, job.start_beyond);
  first_step_.assign(job.workers, job.start_step);
  for (int worker = 0; worker < job.workers; ++worker) {
    MutexLock lock(workers_[worker].mutex);
    workers_[worker].pushes_complete = job.start_step * static_cast<int64_t>(bucket_count);
    workers_[worker].steps_answered = job.start_step;
  }
  return absl::OkStatus();
}

absl::Status ParameterServer::StartOnceComplete() {
  std::vector<std::pair<int, bool>> present;  // worker, again
  {
    MutexLock lock(mutex_);
    if (!weights_arrived_ || starting_ || !members_.Absent().empty()) return absl::OkStatus();
    present = members_.Present();
    starting_ = true;
    if (restored_ && !epoch_is_given_) epoch_ = std::max<int64_t>(epoch_, members_.NewestEpoch() + 1);
  }
  // Read before any Welcome: a worker may push once it has one, and the others begin with the weights before
  // it.
  PSRING_ASSIGN_OR_RETURN(const std::vector<Reply> weights, rounds_->Weights());
  started_ = true;
  // So that there is always a checkpoint to continue from.
  if (checkpointing_.enabled() && !restored_) {
    TakeCheckpoint(/*finished=*/false);
    checkpointing_.Flush();
  }
  for (const auto& [worker, again] : present) {
    PSRING_RETURN_IF_ERROR(
        SendWelcome(worker, first_step_[worker], again, /*went_back=*/again || restored_, &weights));
  }
  return absl::OkStatus();
}

}  // namespace psring
