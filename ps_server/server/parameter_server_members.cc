// How workers enter a job, at its start and later, and how they are lost.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/shard/job_memory.h"

namespace psring {

absl::Status ParameterServer::Join(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  using Entry = Membership::Entry;
  const int worker = joining.worker;
  if (worker < 0 || worker >= options_.workers) {
    return InvalidArgument("worker ", worker, " is out of range: this server has ", options_.workers,
                           " workers");
  }
  if (joining.epoch < 0 || joining.epoch > kMaxWireCount) {
    return InvalidArgument("worker ", worker, " names epoch ", joining.epoch);
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
    return FailedPrecondition("worker ", worker, " cannot reconnect to a job with tables");
  }
  switch (entry) {
    case Entry::kFirst:
      return Enter(joining, std::move(sink));
    case Entry::kResumes:
      if (rule_.kind == WaitingRule::Kind::kBackup) {
        return FailedPrecondition("worker ", worker,
                                  " cannot reconnect: a job with backup workers continues without it");
      }
      return Resume(worker, std::move(sink));
    case Entry::kReturns:
      if (options_.servers > 1) {  // each server would choose another step
        return FailedPrecondition("worker ", worker, " was lost; it cannot join several servers again");
      }
      return Return(joining, std::move(sink));
    case Entry::kAnsweredAgain:
      workers_[worker].Replace(std::move(sink));
      Deliver(worker, {.message = WelcomeMessage(0)});
      return absl::OkStatus();
  }
  return Internal("a Join without a meaning");
}

absl::Status ParameterServer::Enter(const Joining& joining, std::shared_ptr<ReplySink> sink) {
  const int worker = joining.worker;
  bool had_begun = false;  // before this Join; otherwise all get their Welcome together
  {
    MutexLock lock(mutex_);
    had_begun = start_.has_begun();
    absl::Status fits = start_.Check(worker, joining.job);
    if (fits.ok() && !start_.restored()) {
      if (worker == 0) {
        fits = PrepareLocked(joining.job);
      } else if (members_.presence(0) == Membership::Presence::kAbsent) {
        fits = RequireMemory(joining.job, device_);  // once worker 0 is here, the memory is allocated
      }
    }
    start_.NoteJoin(worker, joining.job, fits);
    PSRING_RETURN_IF_ERROR(fits);
    watchdog_.NoteArrival();
    members_.Join(joining);
    workers_[worker].Replace(std::move(sink));
  }
  // After a restart each asynchronous worker continues when it joins.
  if (had_begun) return SendWelcome(worker, start_.first_step(worker), joining.again, /*went_back=*/false);
  absl::Status started = StartOnceComplete();
  if (!started.ok()) Abort(started);
  return started;
}

// The stream broke, but both processes still run: they continue where they were.
absl::Status ParameterServer::Resume(int worker, std::shared_ptr<ReplySink> sink) {
  std::shared_ptr<ReplySink> old;
  receiver_->DropStaged(worker);
  for (Push& push : workers_[worker].pushes) push.answered_again = false;
  {
    MutexLock lock(mutex_);
    members_.Resume(worker);
    MutexLock worker_lock(workers_[worker].mutex);
    old = std::exchange(workers_[worker].sink, std::move(sink));
    workers_[worker].held.clear();  // answered when the worker repeats its pushes
  }
  if (old != nullptr) old->Abort(Cancelled("this worker has opened another stream"));
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
    workers_[worker].Replace(std::move(sink));
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
          .epoch = start_.epoch(),
          .incarnation = incarnation_,
          .patience_ms = absl::ToInt64Milliseconds(patience)};
}

absl::Status ParameterServer::SendWelcome(int worker, int64_t step, bool again, bool went_back,
                                          const std::vector<Reply>* first_weights) {
  message::Welcome welcome = WelcomeMessage(step);
  welcome.went_back = went_back;
  if (!again && (worker != 0 || step > 0 || start_.restored())) {
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
  PSRING_RETURN_IF_ERROR(start_.MayRestore(checkpoint));
  PSRING_RETURN_IF_ERROR(PrepareLocked(checkpoint.job));
  const bool each_alone = rule_.each_alone();
  start_.Restore(checkpoint, each_alone, epoch);
  finished_ = was_finished_ = checkpoint.finished;
  PSRING_RETURN_IF_ERROR(rounds_->Restore(checkpoint));
  for (int worker = 0; worker < options_.workers; ++worker) {
    const bool lost = !checkpoint.buckets.empty() && checkpoint.buckets.front().left[worker];
    // The worker lost its connection when the server died, and has to find the restarted one.
    members_.AwaitReturn(worker, lost, MonotonicNanos(), absl::ToInt64Nanoseconds(options_.timeout));
    int64_t pushes = 0;
    for (const Consistency::State& bucket : checkpoint.buckets) {
      pushes += each_alone ? bucket.next_step[worker] : bucket.version;
    }
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].pushes_complete = pushes;
    workers_[worker].steps_answered = checkpoint.step;
  }
  if (start_.has_begun()) {
    started_ = true;
    members_.PassBarriers(was_finished_ ? Membership::kBarriers : Membership::kBarriers - 1);
  }
  MutexLock stats_lock(stats_mutex_);
  stats_ = checkpoint.stats;
  stats_.restarts += epoch.has_value() ? 0 : 1;
  return absl::OkStatus();
}

absl::Status ParameterServer::PrepareLocked(const ServerJob& job) {
  // First, because another job may follow if this one does not fit into memory.
  PSRING_ASSIGN_OR_RETURN(shard_, ParameterShard::Create(job, device_,
                                                         {.staging_bytes = options_.staging_bytes,
                                                          .reject_nonfinite = options_.reject_nonfinite}));
  rule_ = RuleOf(job);
  job_ = job;
  const size_t bucket_count = job.buckets.size();
  order_ = {.serial = job.serial, .each_alone = rule_.each_alone(), .buckets = bucket_count};
  checkpointing_.Begin(rule_.each_alone(), job.workers, bucket_count);
  PSRING_ASSIGN_OR_RETURN(rows_, RowRounds::Create(job, options_.reject_nonfinite));
  rounds_ = std::make_unique<BucketRounds>(job, *shard_, workers_.get(), checkpointing_, rows_.get(),
                                           options_.arrivals);
  receiver_ = std::make_unique<BucketReceiver>(
      BucketReceiver::Parts{.job = job,
                            .each_alone = rule_.each_alone(),
                            .incarnation = incarnation_,
                            .shard = *shard_,
                            .rounds = *rounds_,
                            .workers = workers_.get(),
                            .on_device_error = [this](const absl::Status& why) { Abort(why); }});
  if (!receiver_->lacks_weights()) start_.OnWeights();
  if (rule_.each_alone()) queue_thread_ = std::thread([this] { CallQueuedWorkers(); });
  const bool continues = job.start_step > 0 || job.start_beyond > 0;  // from a checkpoint of its workers
  if (continues) {
    rounds_->BeginAt(job.start_step, job.start_samples, job.start_beyond);
    start_.BeginAt(job.start_step);
  }
  for (int i = 0; i < job.workers; ++i) {
    workers_[i].pushes.resize(bucket_count);
    MutexLock lock(workers_[i].mutex);
    workers_[i].ContinueAt(job.start_step, bucket_count);
  }
  return absl::OkStatus();
}

absl::Status ParameterServer::StartOnceComplete() {
  std::vector<std::pair<int, bool>> present;  // worker, again
  {
    MutexLock lock(mutex_);
    if (!start_.Begin(members_)) return absl::OkStatus();
    present = members_.Present();
  }
  // Read before any Welcome: a worker may push once it has one, and the others begin with the weights before
  // it.
  PSRING_ASSIGN_OR_RETURN(const std::vector<Reply> weights, rounds_->Weights());
  started_ = true;
  // So that there is always a checkpoint to continue from.
  if (checkpointing_.enabled() && !start_.restored()) {
    TakeCheckpoint(/*finished=*/false);
    checkpointing_.Flush();
  }
  for (const auto& [worker, again] : present) {
    PSRING_RETURN_IF_ERROR(SendWelcome(worker, start_.first_step(worker), again,
                                       /*went_back=*/again || start_.restored(), &weights));
  }
  return absl::OkStatus();
}

void ParameterServer::Disconnected(int worker, const ReplySink* sink, const std::string& why) {
  MutexLock receive_lock(workers_[worker].receive);
  MutexLock lock(mutex_);
  {
    MutexLock worker_lock(workers_[worker].mutex);
    if (workers_[worker].sink.get() != sink) return;
    workers_[worker].sink.reset();
  }
  if (started_) receiver_->DropStaged(worker);
  const int64_t patience_ns = started_ ? absl::ToInt64Nanoseconds(options_.worker_timeout) : 0;
  if (members_.Disconnect(worker, MonotonicNanos(), patience_ns, why)) watchdog_.Wake();
}

void ParameterServer::Expel(int worker, const ReplySink* from, const absl::Status& why) {
  if (workers_[worker].Sink().get() != from) return;
  if (why.code() == absl::StatusCode::kInternal || !ContinuesWithout(worker)) return Abort(why);
  std::shared_ptr<ReplySink> sink;
  {
    MutexLock lock(mutex_);
    if (!members_.Expel(worker, MonotonicNanos(), std::string(why.message()))) return;
    sink = workers_[worker].Replace(nullptr);
  }
  watchdog_.Wake();
  if (sink != nullptr) sink->Abort(why);
}

// With several servers, each loses a worker when its own stream to it breaks: the push that was in transit
// may be in one server's update and not in another's. All servers lose the worker, because its client then
// ends the other streams.
bool ParameterServer::ContinuesWithout(int worker) {
  // The first start needs every worker; at a restart one may have died with the server.
  if (!started_ && !start_.restored()) return false;
  if (options_.on_worker_loss == OnWorkerLoss::kStop) return false;
  if (options_.on_worker_loss == OnWorkerLoss::kByMode && !rule_.each_alone()) return false;
  // The push of a bucket cannot be undone while the norm of its step is not known.
  if (job_.clip_norm > 0) return false;
  // No other worker has the rows of the checkpoint.
  if (worker == 0 && rows_ != nullptr && rows_->AwaitsInitialRows()) return false;
  // No worker would relay the first server's decision, made without this worker, to the other servers.
  if (options_.servers > 1 && rule_.kind == WaitingRule::Kind::kBackup) return false;
  MutexLock lock(mutex_);
  return members_.OthersRemain(worker);
}

void ParameterServer::LoseOverdue() {
  std::vector<std::pair<int, std::string>> lost;
  {
    MutexLock lock(mutex_);
    if (failure_.ok() && !was_finished_) lost = members_.Overdue(MonotonicNanos());
  }
  for (const auto& [worker, why] : lost) {
    Lose(worker, absl::StrCat("worker ", worker, RanksBeside({worker}, options_.ranks), " was lost: ", why));
  }
}

// The others continue without the worker, or the job fails.
void ParameterServer::Lose(int worker, const std::string& lost) {
  if (!ContinuesWithout(worker)) return Abort(Unavailable(lost));
  absl::StatusOr<Lane> lane = NewLane();
  if (!lane.ok()) return Abort(lane.status());
  Replies replies;
  std::shared_ptr<ReplySink> sink;
  {
    MutexLock receive_lock(workers_[worker].receive);
    {
      MutexLock lock(mutex_);
      if (!members_.IsGone(worker)) return;  // it has reconnected meanwhile
      sink = workers_[worker].Replace(nullptr);
    }
    if (started_) receiver_->DropStaged(worker);
    if (absl::Status status = rounds_->OnLost(worker, *lane, replies); !status.ok()) return Abort(status);
    if (rows_ != nullptr) rows_->OnGone(worker, replies);
    int64_t step = 0;
    for (const Push& push : workers_[worker].pushes) step = std::max(step, push.step);
    {
      MutexLock lock(mutex_);
      members_.Lose(worker);
      changed_.NotifyAll();
    }
    MutexLock stats_lock(stats_mutex_);
    stats_.lost_workers.push_back(worker);
    stats_.lost_at_step.push_back(step);
  }
  if (sink != nullptr) sink->Abort(Unavailable(lost));
  options_.on_note(absl::StrCat(lost, "; the others continue"));
  Finish(std::move(replies));
  ReleaseBarriers();
  // Workers that have joined a restarted server may wait for this one.
  if (absl::Status status = StartOnceComplete(); !status.ok()) Abort(status);
}

void ParameterServer::OnSilence() {
  if (failed_) return;
  const BucketRounds::Missing missing = WaitsFor();
  if (missing.what.empty()) return;
  const absl::Status waited = DeadlineExceeded("waited ", absl::FormatDuration(options_.timeout), " for ",
                                               missing.what, RanksBeside(missing.workers, options_.ranks));
  watchdog_.NoteArrival();
  const bool continues = !missing.workers.empty() &&
                         std::ranges::all_of(missing.workers, [&](int one) { return ContinuesWithout(one); });
  if (!continues) return Abort(waited);
  for (const int worker : missing.workers) {
    const std::shared_ptr<ReplySink> sink = workers_[worker].Sink();
    if (sink != nullptr) Expel(worker, sink.get(), waited);
  }
}

// Notifies workers in the queue for memory when there is some.
void ParameterServer::CallQueuedWorkers() {
  while (const std::optional<int> worker = shard_->staging().AwaitCall()) {
    const std::shared_ptr<ReplySink> sink = workers_[*worker].Sink();
    if (sink != nullptr) sink->Proceed();
  }
}

// The workers that others wait for; none if no worker waits.
BucketRounds::Missing ParameterServer::WaitsFor() {
  if (!started_) {
    MutexLock lock(mutex_);
    return {{}, start_.WaitsFor(members_)};
  }
  // First, because a worker that others wait for may itself wait for memory.
  if (BucketRounds::Missing missing = receiver_->HoldsMemory(); !missing.what.empty()) return missing;
  if (BucketRounds::Missing missing = rounds_->WaitsFor(); !missing.what.empty()) return missing;
  if (const std::vector<int> missing = rows_ != nullptr ? rows_->WaitsFor() : std::vector<int>();
      !missing.empty()) {
    return {missing, absl::StrCat(WorkersText(missing), " to send rows for which the others wait")};
  }
  MutexLock lock(mutex_);
  const std::vector<int> missing = members_.MissingAtBarrier();
  if (missing.empty()) return {};
  return {missing, absl::StrCat(WorkersText(missing), " to reach the barrier at which the others wait")};
}

}  // namespace psring
