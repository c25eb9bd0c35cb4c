#include "ps_server/server/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/ops/optimizer.h"
#include "ps_server/protocol/messages.h"

namespace psring {
namespace {

absl::Status Wrong(const std::string& what) {
  return absl::DataLossError(
      absl::StrCat("the checkpoint does not fit its own job: ", what, "; use another --checkpoint_dir"));
}

absl::Status CheckLength(const std::string& list, size_t length, size_t expected) {
  if (length == expected) return absl::OkStatus();
  return Wrong(absl::StrCat(list, " has ", length, " entries, not ", expected));
}

absl::Status CheckRange(const std::string& what, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return Wrong(absl::StrCat(what, " is ", value, "; it must be 0 to ", most));
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
    return Wrong(absl::StrCat("staleness_histogram has ", stats.staleness_histogram.size(), " entries"));
  }
  PSRING_RETURN_IF_ERROR(CheckAll("staleness_histogram", stats.staleness_histogram, INT64_MAX / 2));
  const int64_t counts[] = {stats.pushes, stats.dropped_gradients, stats.restarts};
  return CheckAll("the list of counters", counts, INT64_MAX / 2);
}

}  // namespace

ServerResult ResultOf(int server, const ServerStats& stats) {
  return {.server = server,
          .pushes = stats.pushes,
          .payload_rx_bytes = stats.payload.payload_rx_bytes,
          .payload_tx_bytes = stats.payload.payload_tx_bytes,
          .staleness_histogram = stats.staleness_histogram,
          .dropped_gradients = stats.dropped_gradients,
          .restarts = stats.restarts,
          .lost_workers = stats.lost_workers,
          .lost_at_step = stats.lost_at_step,
          .peak_memory_mb = PeakMemoryMb()};
}

absl::Status ValidateCheckpoint(const Checkpoint& checkpoint) {
  const ServerJob& job = checkpoint.job;
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(job.consistency, job.workers));
  const size_t workers = static_cast<size_t>(job.workers);
  const size_t arrays = 1 + OptimizerSlots(job.optimizer.kind).size();
  // Compared by dividing: the product could wrap.
  if (checkpoint.values.size() % arrays != 0 ||
      checkpoint.values.size() / arrays != static_cast<size_t>(job.parameters)) {
    return Wrong(absl::StrCat("it has ", checkpoint.values.size(), " values, not ", arrays, " for each of ",
                              job.parameters, " parameters"));
  }
  PSRING_RETURN_IF_ERROR(CheckRange("step", checkpoint.step, kMaxWireCount));
  PSRING_RETURN_IF_ERROR(CheckLength("buckets", checkpoint.buckets.size(), job.buckets.size()));
  PSRING_RETURN_IF_ERROR(CheckLength("samples", checkpoint.samples.size(), job.buckets.size()));
  PSRING_RETURN_IF_ERROR(CheckAll("samples", checkpoint.samples, INT64_MAX / 2));
  for (size_t i = 0; i < checkpoint.buckets.size(); ++i) {
    const Consistency::State& bucket = checkpoint.buckets[i];
    const std::string version = absl::StrCat("bucket ", i, "'s version");
    PSRING_RETURN_IF_ERROR(CheckLength(absl::StrCat("bucket ", i, "'s left"), bucket.left.size(), workers));
    if (rule.each_alone()) {
      PSRING_RETURN_IF_ERROR(CheckRange(version, bucket.version, kMaxWireCount * job.workers));
      PSRING_RETURN_IF_ERROR(
          CheckLength(absl::StrCat("bucket ", i, "'s next_step"), bucket.next_step.size(), workers));
      PSRING_RETURN_IF_ERROR(
          CheckAll(absl::StrCat("bucket ", i, "'s next_step"), bucket.next_step, kMaxWireCount));
    } else if (bucket.version != checkpoint.step) {
      return Wrong(absl::StrCat(version, " is ", bucket.version, ", not the step ", checkpoint.step));
    }
    if (bucket.version < -job.optimizer.earlier_updates) {
      return Wrong(absl::StrCat(version, " is ", bucket.version, ", before the first update"));
    }
  }
  return ValidateStats(checkpoint.stats, job);
}

}  // namespace psring
