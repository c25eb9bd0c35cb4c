// How a worker is lost, and how a job ends: all workers have left, or the job has failed.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/deadline.h"
#include "ps_server/server/parameter_server.h"

namespace psring {
namespace {

constexpr absl::Duration kIdle = absl::Seconds(3);

}  // namespace

void ParameterServer::Disconnected(int worker, const ReplySink* sink, const std::string& why) {
  MutexLock receive_lock(workers_[worker].receive);
  MutexLock lock(mutex_);
  {
    MutexLock worker_lock(workers_[worker].mutex);
    if (workers_[worker].sink.get() != sink) return;
    workers_[worker].sink.reset();
  }
  DropStaged(worker);
  const int64_t patience_ns = started_ ? absl::ToInt64Nanoseconds(options_.worker_timeout) : 0;
  if (!members_.Disconnect(worker, MonotonicNanos(), patience_ns, why)) return;
  watch_at_once_ = true;
  changed_.NotifyAll();
}

// A worker that violates the protocol is lost.
void ParameterServer::TurnAway(int worker, const ReplySink* from, const absl::Status& why) {
  if (workers_[worker].Sink().get() != from) return;
  if (why.code() == absl::StatusCode::kInternal || !ContinuesWithout(worker)) return Abort(why);
  std::shared_ptr<ReplySink> sink;
  {
    MutexLock lock(mutex_);
    if (!members_.Expel(worker, MonotonicNanos(), std::string(why.message()))) return;
    watch_at_once_ = true;
    changed_.NotifyAll();
    MutexLock worker_lock(workers_[worker].mutex);
    sink = std::exchange(workers_[worker].sink, nullptr);
  }
  if (sink != nullptr) sink->Abort(why);
}

// With several servers, each loses a worker when its own stream to it breaks: the push that was in transit
// may be in one server's update and not in another's. All servers lose the worker, because its client then
// ends the other streams.
bool ParameterServer::ContinuesWithout(int worker) {
  // The first start needs every worker; at a restart one may have died with the server.
  if (!started_ && !restored_) return false;
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

// On the watchdog's thread: the others continue without the worker, or the job fails.
void ParameterServer::Lose(int worker, const std::string& why, Lane& lane) {
  const std::string lost = absl::StrCat("worker ", worker, " was lost: ", why);
  if (!ContinuesWithout(worker)) return Abort(absl::UnavailableError(lost));
  Replies replies;
  std::shared_ptr<ReplySink> sink;
  {
    MutexLock receive_lock(workers_[worker].receive);
    {
      MutexLock lock(mutex_);
      if (!members_.IsGone(worker)) return;  // it has reconnected meanwhile
      MutexLock worker_lock(workers_[worker].mutex);
      sink = std::exchange(workers_[worker].sink, nullptr);
    }
    DropStaged(worker);
    if (absl::Status status = rounds_->OnLost(worker, lane, replies); !status.ok()) return Abort(status);
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
  if (sink != nullptr) sink->Abort(absl::UnavailableError(lost));
  options_.on_note(absl::StrCat(lost, "; the others continue"));
  Finish(std::move(replies));
  ReleaseBarriers();
  // Workers that have joined a restarted server may wait for this one.
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

void ParameterServer::Abort(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    failed_ = true;
    changed_.NotifyAll();
  }
  for (int worker = 0; worker < options_.workers; ++worker) {
    std::shared_ptr<ReplySink> sink;
    {
      MutexLock lock(workers_[worker].mutex);
      sink = std::exchange(workers_[worker].sink, nullptr);
    }
    if (sink != nullptr) sink->Abort(why);
  }
}

std::optional<absl::Status> ParameterServer::WaitUntilOver(MonotonicTime deadline) {
  MutexLock lock(mutex_);
  while (true) {
    if (!failure_.ok()) return failure_;
    const auto [expected, left] = members_.CountExpectedAndLeft();
    // Workers of a server which was restarted after the last step only have to leave, or have left before.
    const bool idle = was_finished_ && MonotonicNanos() - last_arrival_ns_ > absl::ToInt64Nanoseconds(kIdle);
    if (expected == 0 ? left > 0 || was_finished_ : idle && members_.Present().empty()) {
      return absl::OkStatus();
    }
    if (MonotonicNow() >= deadline) return std::nullopt;
    changed_.WaitUntil(mutex_, deadline);
  }
}

std::vector<int> ParameterServer::lost_workers() const {
  MutexLock lock(mutex_);
  return members_.Lost();
}

void ParameterServer::Watch() {
  absl::StatusOr<Lane> lane = NewLane();
  if (!lane.ok()) return Abort(lane.status());
  const absl::Duration interval =
      std::clamp(std::min(options_.timeout, options_.worker_timeout + absl::Milliseconds(100)) / 10,
                 absl::Milliseconds(10), absl::Seconds(1));
  while (true) {
    std::vector<std::pair<int, std::string>> lost;
    {
      MutexLock lock(mutex_);
      if (!stopping_ && !watch_at_once_) changed_.WaitUntil(mutex_, MonotonicNow() + interval);
      if (stopping_) return;
      watch_at_once_ = false;
      if (!failure_.ok()) continue;
      if (!was_finished_) lost = members_.Overdue(MonotonicNanos());
    }
    for (const auto& [worker, why] : lost) Lose(worker, why, *lane);
    const absl::Duration silence = absl::Nanoseconds(MonotonicNanos() - last_arrival_ns_);
    if (silence < options_.timeout) continue;
    const BucketRounds::Missing missing = WaitsFor();
    if (missing.what.empty()) continue;
    const std::string waited =
        absl::StrCat("waited ", absl::FormatDuration(options_.timeout), " for ", missing.what);
    last_arrival_ns_ = MonotonicNanos();
    bool continues = !missing.workers.empty();
    for (const int worker : missing.workers) continues = continues && ContinuesWithout(worker);
    if (!continues) {
      Abort(absl::DeadlineExceededError(waited));
      continue;
    }
    for (const int worker : missing.workers) {
      const std::shared_ptr<ReplySink> sink = workers_[worker].Sink();
      if (sink != nullptr) TurnAway(worker, sink.get(), absl::DeadlineExceededError(waited));
    }
  }
}

// Tells workers in the queue for memory when there is some.
void ParameterServer::CallQueuedWorkers() {
  while (const std::optional<int> worker = shard_->staging().AwaitCall()) {
    const std::shared_ptr<ReplySink> sink = workers_[*worker].Sink();
    if (sink != nullptr) sink->Proceed();
  }
}

// The workers that use the memory for which others wait.
BucketRounds::Missing ParameterServer::HoldsMemory() {
  const StagingPool& staging = shard_->staging();
  const std::vector<int> line = staging.in_line();
  if (line.empty()) return {};
  std::vector<int> senders;
  for (int worker = 0; worker < options_.workers; ++worker) {
    MutexLock lock(workers_[worker].receive);
    for (size_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
      const Push& push = workers_[worker].pushes[bucket];
      if (push.step < 0 || push.whole || !shard_->is_staged(worker, static_cast<int>(bucket))) continue;
      senders.push_back(worker);
      break;
    }
  }
  const std::vector<int> readers = staging.readers();
  std::vector<std::string> what;
  if (!senders.empty()) what.push_back(absl::StrCat(WorkersText(senders), " to send the rest of a push"));
  if (!readers.empty()) what.push_back(absl::StrCat(WorkersText(readers), " to read weights"));
  if (what.empty()) return {};  // the others get it now
  BucketRounds::Missing missing{
      senders, absl::StrCat(absl::StrJoin(what, ", and "), ", so that there is memory for the ", "pushes of ",
                            WorkersText(line))};
  std::ranges::copy_if(readers, std::back_inserter(missing.workers),
                       [&](int reader) { return std::ranges::count(senders, reader) == 0; });
  return missing;
}

std::string ParameterServer::RejectionOf(const std::vector<int>& workers) const {
  for (const int worker : workers) {
    if (rejections_[worker].empty()) continue;
    return absl::StrCat("; worker ", worker, " was rejected: ", rejections_[worker]);
  }
  return "";
}

void ParameterServer::AbortJoining(const absl::Status& why) {
  std::string rejection;
  {
    MutexLock lock(mutex_);
    if (started_) return;
    rejection = RejectionOf(members_.Absent());
  }
  Abort(absl::Status(why.code(), absl::StrCat(why.message(), rejection)));
}

// The workers that others wait for; none if no worker waits.
BucketRounds::Missing ParameterServer::WaitsFor() {
  if (!started_) {
    MutexLock lock(mutex_);
    const std::vector<int> absent = members_.Absent();
    if (absent.empty()) return {{}, "worker 0's initial weights"};
    return {{}, absl::StrCat(WorkersText(absent), " to join", RejectionOf(absent))};
  }
  // First, because a worker that others wait for may itself wait for memory.
  if (BucketRounds::Missing missing = HoldsMemory(); !missing.what.empty()) return missing;
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
