// How a job of the parameter server ends: everybody has left, somebody is lost, or a wait took too long.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ps_server/parameter_server.h"

namespace psring {
namespace {

std::string Name(const std::vector<int>& workers) {
  return absl::StrCat(workers.size() == 1 ? "worker " : "workers ", absl::StrJoin(workers, ", "));
}

}  // namespace

void ParameterServer::Disconnected(int worker, const std::string& why) {
  bool lost = false;
  {
    MutexLock lock(mutex_);
    lost = presence_[worker] == Presence::kJoined;
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].sink.reset();
  }
  if (lost) Abort(absl::UnavailableError(absl::StrCat("worker ", worker, " was lost: ", why)));
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

std::optional<absl::Status> ParameterServer::WaitUntilOver(absl::Time deadline) {
  MutexLock lock(mutex_);
  while (true) {
    if (!failure_.ok()) return failure_;
    if (std::count(presence_.begin(), presence_.end(), Presence::kLeft) == options_.workers) {
      return absl::OkStatus();
    }
    if (absl::Now() >= deadline) return std::nullopt;
    changed_.WaitUntil(mutex_, deadline);
  }
}

ServerStats ParameterServer::stats() const {
  MutexLock lock(stats_mutex_);
  return stats_;
}

void ParameterServer::Watch() {
  const absl::Duration interval = std::clamp(options_.timeout / 10, absl::Milliseconds(10), absl::Seconds(1));
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitUntil(mutex_, absl::Now() + interval);
      if (stopping_) return;
      if (!failure_.ok()) continue;
    }
    const absl::Duration silence = absl::Nanoseconds(MonotonicNanos() - last_arrival_ns_);
    if (silence < options_.timeout) continue;
    if (const std::string whom = WaitedFor(); !whom.empty()) {
      Abort(absl::DeadlineExceededError(
          absl::StrCat("waited ", absl::FormatDuration(options_.timeout), " for ", whom)));
    }
  }
}

std::string ParameterServer::WaitedFor() {
  if (!started_) {
    MutexLock lock(mutex_);
    std::vector<int> absent;
    for (int worker = 0; worker < options_.workers; ++worker) {
      if (presence_[worker] == Presence::kAbsent) absent.push_back(worker);
    }
    return absent.empty() ? "worker 0's initial weights" : absl::StrCat(Name(absent), " to join");
  }
  for (size_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    const Consistency::Wait wait = state.consistency->WaitsFor();
    if (!wait.workers.empty()) {
      return absl::StrCat(Name(wait.workers), " to push bucket ", bucket, " of step ", wait.step);
    }
  }
  MutexLock lock(admission_mutex_);
  const Consistency::Wait wait = admission_.has_value() ? admission_->WaitsFor() : Consistency::Wait{};
  if (wait.workers.empty()) return "";
  return absl::StrCat(Name(wait.workers), " to announce the gradient of step ", wait.step);
}

}  // namespace psring
