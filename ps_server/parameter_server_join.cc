// How a job of the parameter server begins: workers join, their jobs are held against each other, and once
// all are here and worker 0's weights have arrived, everybody starts from those.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "ps_server/parameter_server.h"

namespace psring {

// -----------------------------------------------------------------------------------------------------

absl::Status ParameterServer::Join(int worker, const ServerJob& job, std::shared_ptr<ReplySink> sink) {
  absl::Status bad_job;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(failure_);
    if (worker < 0 || worker >= options_.workers) {
      return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " is out of range: this server has ",
                                                     options_.workers, " workers"));
    }
    if (presence_[worker] != Presence::kAbsent) {
      return absl::AlreadyExistsError(absl::StrCat("there is a worker ", worker, " already"));
    }
    bad_job = CheckJobLocked(worker, job);
    if (bad_job.ok() && worker == 0) bad_job = PrepareLocked(job);
    if (bad_job.ok()) {
      last_arrival_ns_ = MonotonicNanos();
      presence_[worker] = Presence::kJoined;
      jobs_[worker] = job;
      MutexLock worker_lock(workers_[worker].mutex);
      workers_[worker].sink = std::move(sink);
    }
  }
  // Without this worker the job cannot start: tell those that wait for it at once.
  if (bad_job.ok()) bad_job = StartOnceComplete();
  if (!bad_job.ok()) Abort(bad_job);
  return bad_job;
}

absl::Status ParameterServer::CheckJobLocked(int worker, const ServerJob& job) {
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
  if (worker != 0) {
    return presence_[0] == Presence::kAbsent ? absl::OkStatus() : RequireSameJob(jobs_[0], job, worker);
  }
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  for (int other = 1; other < options_.workers; ++other) {
    if (presence_[other] != Presence::kAbsent) {
      PSRING_RETURN_IF_ERROR(RequireSameJob(job, jobs_[other], other));
    }
  }
  return absl::OkStatus();
}

absl::Status ParameterServer::PrepareLocked(const ServerJob& job) {
  job_ = job;
  PSRING_ASSIGN_OR_RETURN(shard_, ParameterShard::Create(job, device_));
  const size_t bucket_count = job.buckets.size();
  buckets_ = std::make_unique<BucketState[]>(bucket_count);
  for (size_t i = 0; i < bucket_count; ++i) {
    MutexLock lock(buckets_[i].mutex);
    PSRING_ASSIGN_OR_RETURN(buckets_[i].consistency, MakeConsistency(job.consistency, job.workers));
    buckets_[i].pending.resize(job.workers);
    buckets_[i].received_version.resize(job.workers);
  }
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(job.consistency, job.workers));
  notes_arrivals_ = options_.arrivals != nullptr && rule.each_alone();
  if (notes_arrivals_) {
    *options_.arrivals = {.consistency = job.consistency, .workers = job.workers};
    options_.arrivals->updates.resize(bucket_count);
  }
  if (rule.kind == WaitingRule::Kind::kBackup && job.server == 0) {
    MutexLock lock(admission_mutex_);
    admission_.emplace(job.workers, rule.number);
  }
  for (int i = 0; i < job.workers; ++i) workers_[i].pushes.resize(bucket_count);
  workers_[0].weights_bytes.resize(bucket_count);
  workers_[0].weights_left = bucket_count;
  weights_arrived_ = bucket_count == 0;
  return absl::OkStatus();
}

absl::Status ParameterServer::StartOnceComplete() {
  {
    MutexLock lock(mutex_);
    const bool complete = weights_arrived_ && std::count(presence_.begin(), presence_.end(),
                                                         Presence::kJoined) == options_.workers;
    if (!complete || starting_) return absl::OkStatus();
    starting_ = true;
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<Reply> weights, AllWeights());
  started_ = true;
  for (int worker = 0; worker < options_.workers; ++worker) {
    if (worker != 0) {
      for (const Reply& bucket : weights) Deliver(worker, bucket);
    }
    Deliver(worker, {.header = {.kind = MessageKind::kJoin}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Reply>> ParameterServer::AllWeights() {
  std::vector<Reply> replies;
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    MutexLock lock(buckets_[bucket].mutex);
    PSRING_ASSIGN_OR_RETURN(Snapshot copy, shard_->CopyWeights(bucket));
    replies.push_back({.header = {.kind = MessageKind::kWeights,
                                  .bucket = bucket,
                                  .version = buckets_[bucket].consistency->version()},
                       .weights = std::move(copy)});
  }
  return replies;
}

}  // namespace psring
