#include "ps_server/server/checkpoint.h"

#include <span>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/ops/optimizer.h"
#include "ps_server/protocol/messages.h"

namespace psring {
namespace {

template <typename... Parts>
absl::Status Wrong(const Parts&... what) {
  return DataLoss("the checkpoint does not fit its own job: ", what..., "; use another --checkpoint_dir");
}

absl::Status CheckLength(const std::string& list, size_t length, size_t expected) {
  if (length == expected) return absl::OkStatus();
  return Wrong(list, " has ", length, " entries, not ", expected);
}

absl::Status CheckRange(const std::string& what, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return Wrong(what, " is ", value, "; it must be 0 to ", most);
}

absl::Status CheckAll(const std::string& list, std::span<const int64_t> values, int64_t most) {
  for (const int64_t value : values)
    PSRING_RETURN_IF_ERROR(CheckRange(absl::StrCat(list, "'s entry"), value, most));
  return absl::OkStatus();
}

absl::Status ValidateStats(const ServerStats& stats, const ServerJob& job) {
  const size_t workers = static_cast<size_t>(job.workers);
  for (const auto& [list, values] : {std::pair("worker_pushes", &stats.worker_pushes),
                                     std::pair("worker_staleness_sum", &stats.worker_staleness_sum),
                                     std::pair("worker_dropped", &stats.worker_dropped)}) {
    PSRING_RETURN_IF_ERROR(CheckLength(list, values->size(), workers));
    PSRING_RETURN_IF_ERROR(CheckAll(list, *values, INT64_MAX / 2));
  }
  PSRING_RETURN_IF_ERROR(CheckLength("lost_at_step", stats.lost_at_step.size(), stats.lost_workers.size()));
  PSRING_RETURN_IF_ERROR(CheckAll("lost_workers", stats.lost_workers, job.workers - 1));
  PSRING_RETURN_IF_ERROR(CheckAll("lost_at_step", stats.lost_at_step, kMaxWireCount));
  if (stats.staleness_histogram.size() > kMaxStaleness + 1) {
    return Wrong("staleness_histogram has ", stats.staleness_histogram.size(), " entries");
  }
  PSRING_RETURN_IF_ERROR(CheckAll("staleness_histogram", stats.staleness_histogram, INT64_MAX / 2));
  const int64_t counts[] = {stats.pushes, stats.dropped_gradients, stats.restarts};
  return CheckAll("the list of counters", counts, INT64_MAX / 2);
}

}  // namespace

ServerResult ResultOf(int server, ServerResult stats) {
  stats.server = server;
  stats.peak_memory_mb = PeakMemoryMb();
  return stats;
}

absl::Status ValidateCheckpoint(const Checkpoint& checkpoint) {
  const ServerJob& job = checkpoint.job;
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  const size_t workers = static_cast<size_t>(job.workers);
  const size_t arrays = 1 + OptimizerSlots(job.optimizer.kind).size();
  // Compared by dividing: the product could wrap.
  if (checkpoint.values.size() % arrays != 0 ||
      checkpoint.values.size() / arrays != static_cast<size_t>(job.parameters)) {
    return Wrong("it has ", checkpoint.values.size(), " values, not ", arrays, " for each of ",
                 job.parameters, " parameters");
  }
  PSRING_RETURN_IF_ERROR(CheckRange("step", checkpoint.step, kMaxWireCount));
  PSRING_RETURN_IF_ERROR(CheckLength("buckets", checkpoint.buckets.size(), job.buckets.size()));
  PSRING_RETURN_IF_ERROR(CheckLength("samples", checkpoint.samples.size(), job.buckets.size()));
  PSRING_RETURN_IF_ERROR(CheckAll("samples", checkpoint.samples, INT64_MAX / 2));
  for (size_t i = 0; i < checkpoint.buckets.size(); ++i) {
    const Consistency::State& bucket = checkpoint.buckets[i];
    const std::string version = absl::StrCat("bucket ", i, "'s version");
    PSRING_RETURN_IF_ERROR(CheckLength(absl::StrCat("bucket ", i, "'s left"), bucket.left.size(), workers));
    if (RuleOf(job).each_alone()) {
      PSRING_RETURN_IF_ERROR(CheckRange(version, bucket.version, kMaxWireCount * job.workers));
      PSRING_RETURN_IF_ERROR(
          CheckLength(absl::StrCat("bucket ", i, "'s next_step"), bucket.next_step.size(), workers));
      PSRING_RETURN_IF_ERROR(
          CheckAll(absl::StrCat("bucket ", i, "'s next_step"), bucket.next_step, kMaxWireCount));
    } else if (bucket.version != checkpoint.step) {
      return Wrong(version, " is ", bucket.version, ", not the step ", checkpoint.step);
    }
    if (bucket.version < -job.optimizer.earlier_updates) {
      return Wrong(version, " is ", bucket.version, ", before the first update");
    }
  }
  return ValidateStats(checkpoint.stats, job);
}

Checkpointing::Checkpointing(CheckpointStore* store, int64_t every,
                             std::function<void(const absl::Status&)> on_error)
    : store_(store), every_(every), on_error_(std::move(on_error)) {
  if (enabled()) writer_ = std::thread([this] { Loop(); });
}

Checkpointing::~Checkpointing() {
  if (!enabled()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  writer_.join();
}

void Checkpointing::Begin(bool each_alone, int workers, size_t buckets) {
  each_alone_ = each_alone;
  workers_ = workers;
  buckets_ = buckets;
}

void Checkpointing::NoteVersion(int bucket, int64_t version) {
  if (!enabled()) return;
  if (each_alone_) {
    if (bucket == 0 && every_ > 0 && version % (every_ * workers_) == 0) due_ = true;
    return;
  }
  if (!asked_ && (every_ == 0 || version % every_ != 0)) return;
  MutexLock lock(mutex_);
  if (version > version_) {
    version_ = version;
    reached_ = 0;
  }
  if (version == version_ && ++reached_ == buckets_) due_ = true;
}

bool Checkpointing::AwaitWritten(MonotonicTime deadline) {
  {
    MutexLock lock(mutex_);
    while ((asked_ || writes_ > 0) && MonotonicNow() < deadline) changed_.WaitUntil(mutex_, deadline);
  }
  Flush();
  return !asked_;
}

void Checkpointing::Write(Checkpoint checkpoint) {
  MutexLock lock(mutex_);
  asked_ = false;  // not after a wait: a request during it needs a newer checkpoint
  ++writes_;
  while (next_.has_value() || writing_) changed_.Wait(mutex_);
  next_ = std::move(checkpoint);
  --writes_;
  changed_.NotifyAll();
}

void Checkpointing::Flush() {
  MutexLock lock(mutex_);
  while (next_.has_value() || writing_) changed_.Wait(mutex_);
}

void Checkpointing::Loop() {
  while (true) {
    std::optional<Checkpoint> taken;
    {
      MutexLock lock(mutex_);
      while (!next_.has_value() && !stopping_) changed_.Wait(mutex_);
      if (!next_.has_value()) return;
      taken = std::exchange(next_, std::nullopt);
      writing_ = true;
    }
    const absl::Status saved = store_->Save(*taken);
    taken.reset();
    if (!saved.ok()) on_error_(saved);
    MutexLock lock(mutex_);
    writing_ = false;
    changed_.NotifyAll();
  }
}

}  // namespace psring
