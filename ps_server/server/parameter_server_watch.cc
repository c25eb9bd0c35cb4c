// How a job of the parameter server ends: everybody has left, somebody is lost, or a wait took too long.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ps_server/server/parameter_server.h"

namespace psring {
namespace {

constexpr absl::Duration kIdle = absl::Seconds(3);

std::string Name(const std::vector<int>& workers) {
  return absl::StrCat(workers.size() == 1 ? "worker " : "workers ", absl::StrJoin(workers, ", "));
}

}  // namespace

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
    int here = 0, left = 0;
    for (const Attendance& worker : attendance_) {
      const bool may_come = worker.presence == Presence::kAbsent && !was_finished_;
      if (may_come || worker.presence == Presence::kJoined) ++here;
      if (worker.presence == Presence::kLeft) ++left;
    }
    // Whoever still comes to a server that was restarted after the last step only wants to leave.
    const bool idle = was_finished_ && MonotonicNanos() - last_arrival_ns_ > absl::ToInt64Nanoseconds(kIdle);
    if (here == 0 && (left > 0 || idle)) return absl::OkStatus();
    if (absl::Now() >= deadline) return std::nullopt;
    changed_.WaitUntil(mutex_, deadline);
  }
}

ServerStats ParameterServer::stats() const {
  ServerStats stats;
  {
    MutexLock lock(stats_mutex_);
    stats = stats_;
  }
  if (started_) stats.staging_peak_bytes = shard_->staging().peak_bytes();
  return stats;
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
      if (!stopping_ && !poked_) changed_.WaitUntil(mutex_, absl::Now() + interval);
      if (stopping_) return;
      poked_ = false;
      if (!failure_.ok()) continue;
      const int64_t now = MonotonicNanos();
      for (int worker = 0; worker < options_.workers && !was_finished_; ++worker) {
        const Attendance& known = attendance_[worker];
        const bool may_be_missed = known.presence == Presence::kJoined || known.presence == Presence::kAbsent;
        if (!may_be_missed || known.gone_ns == 0 || now - known.gone_ns < known.patience_ns) continue;
        lost.emplace_back(worker, known.why);
      }
    }
    for (const auto& [worker, why] : lost) Lose(worker, why, *lane);
    const absl::Duration silence = absl::Nanoseconds(MonotonicNanos() - last_arrival_ns_);
    if (silence < options_.timeout) continue;
    const Missing missing = WaitedFor();
    if (missing.what.empty()) continue;
    const std::string waited =
        absl::StrCat("waited ", absl::FormatDuration(options_.timeout), " for ", missing.what);
    last_arrival_ns_ = MonotonicNanos();
    bool goes_on = !missing.workers.empty();
    for (const int worker : missing.workers) goes_on = goes_on && GoesOnWithout(worker);
    if (!goes_on) {
      Abort(absl::DeadlineExceededError(waited));
      continue;
    }
    for (const int worker : missing.workers) {
      std::shared_ptr<ReplySink> sink;
      {
        MutexLock lock(workers_[worker].mutex);
        sink = workers_[worker].sink;
      }
      if (sink != nullptr) TurnAway(worker, sink.get(), absl::DeadlineExceededError(waited));
    }
  }
}

void ParameterServer::CallThoseInLine() {
  while (const std::optional<int> worker = shard_->staging().AwaitCall()) {
    std::shared_ptr<ReplySink> sink;
    {
      MutexLock lock(workers_[*worker].mutex);
      sink = workers_[*worker].sink;
    }
    if (sink != nullptr) sink->Proceed();
  }
}

ParameterServer::Missing ParameterServer::HoldsMemory() {
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
  if (!senders.empty()) what.push_back(absl::StrCat(Name(senders), " to send the rest of a push"));
  if (!readers.empty()) what.push_back(absl::StrCat(Name(readers), " to read weights"));
  if (what.empty()) return {};  // their turn comes just now
  Missing missing{senders, absl::StrCat(absl::StrJoin(what, ", and "), ", so that there is memory for the ",
                                        "pushes of ", Name(line))};
  std::ranges::copy_if(readers, std::back_inserter(missing.workers),
                       [&](int reader) { return std::ranges::count(senders, reader) == 0; });
  return missing;
}

ParameterServer::Missing ParameterServer::WaitedFor() {
  if (!started_) {
    MutexLock lock(mutex_);
    std::vector<int> absent;
    for (int worker = 0; worker < options_.workers; ++worker) {
      if (attendance_[worker].presence == Presence::kAbsent) absent.push_back(worker);
    }
    return {{}, absent.empty() ? "worker 0's initial weights" : absl::StrCat(Name(absent), " to join")};
  }
  // First: whoever is waited for may itself wait for memory.
  if (Missing missing = HoldsMemory(); !missing.what.empty()) return missing;
  for (size_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    const Consistency::Wait wait = state.consistency->WaitsFor();
    if (!wait.workers.empty()) {
      return {wait.workers,
              absl::StrCat(Name(wait.workers), " to push bucket ", bucket, " of step ", wait.step)};
    }
  }
  {
    MutexLock lock(admission_mutex_);
    const Consistency::Wait wait = admission_.has_value() ? admission_->WaitsFor() : Consistency::Wait{};
    if (!wait.workers.empty()) {
      return {wait.workers,
              absl::StrCat(Name(wait.workers), " to announce the gradient of step ", wait.step)};
    }
  }
  MutexLock lock(mutex_);
  std::vector<int> missing;
  bool somebody_waits = false;
  for (int worker = 0; worker < options_.workers; ++worker) {
    const Attendance& known = attendance_[worker];
    if (known.presence != Presence::kJoined && known.presence != Presence::kAbsent) continue;
    if (known.barrier < 0) missing.push_back(worker);
    somebody_waits = somebody_waits || known.barrier >= 0;
  }
  if (!somebody_waits) return {};
  return {missing, absl::StrCat(Name(missing), " to get as far as the others, who wait for the next stage")};
}

}  // namespace psring
