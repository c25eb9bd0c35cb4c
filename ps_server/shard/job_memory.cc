#include "ps_server/shard/job_memory.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/device/memory_limit.h"
#include "common/ops/optimizer.h"
#include "common/tables/row_storage.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {
namespace {

constexpr double kMiB = 1 << 20;
// Upper bounds of what server, shard and consistency keep.
constexpr double kBytesPerBucket = 1024;
constexpr double kBytesPerBucketAndWorker = 256;

// Gradients that are staged at the same time, in bytes of float32: of every worker if they are added in
// order; else of one push.
double StagedBytes(const ServerJob& job) {
  const double all = static_cast<double>(job.parameters) * sizeof(float);
  const Accumulation accumulation = AccumulationOf(job);
  if (accumulation == Accumulation::kSum) return 0;
  if (accumulation == Accumulation::kSumInOrder) return all * job.workers;
  if (job.serial) return all;
  size_t largest = 0;
  for (const Bucket& bucket : job.buckets) largest = std::max(largest, bucket.count);
  return static_cast<double>(largest) * sizeof(float);
}

bool HasSum(const ServerJob& job) { return AccumulationOf(job) == Accumulation::kSum; }

absl::Status Require(const ServerJob& job, double bytes, const Device& device) {
  const auto usable = static_cast<double>(UsableMemory(device));
  if (bytes <= usable) return absl::OkStatus();
  return ResourceExhausted(
      absl::StrFormat("%s, and %.1f MiB are available on %s; use a smaller model or more servers",
                      DescribeNeed(job, bytes), usable / kMiB, device.name()));
}

}  // namespace

JobMemory MemoryOf(const ServerJob& job, bool device_is_host) {
  const double weights = static_cast<double>(job.parameters) * sizeof(float);
  const size_t slots = OptimizerSlots(job.optimizer.kind).size();
  const double buckets = static_cast<double>(job.buckets.size());
  JobMemory need{.on_device =
                     weights * static_cast<double>(1 + (HasSum(job) ? 1 : 0) + slots) + StagedBytes(job)};
  // The copy with which the job starts; with weights on a GPU also a pinned copy.
  need.on_host = weights * (device_is_host ? 1 : 2) +
                 buckets * (kBytesPerBucket + kBytesPerBucketAndWorker * static_cast<double>(job.workers));
  double rows = 0;
  for (const Table& table : job.tables) {
    rows += static_cast<double>(RowPart{job.server, job.servers}.RowsOf(table.rows)) * table.width;
  }
  need.on_host += rows * sizeof(float) * static_cast<double>(1 + slots);
  if (!device_is_host) return need;
  return {.on_device = need.on_device + need.on_host};
}

std::string DescribeNeed(const ServerJob& job, double bytes) {
  return absl::StrFormat(
      "the parameter server needs %.1f MiB for %d parameters (weights, %s%d x optimizer state) in %d buckets",
      bytes / kMiB, job.parameters, HasSum(job) ? "sum, " : "", OptimizerSlots(job.optimizer.kind).size(),
      job.buckets.size());
}

absl::Status RequireMemory(const ServerJob& job, const Device& device) {
  const bool device_is_host = device.host_reads_memory();
  const JobMemory need = MemoryOf(job, device_is_host);
  PSRING_RETURN_IF_ERROR(Require(job, need.on_device, device));
  return device_is_host ? absl::OkStatus() : Require(job, need.on_host, *MakeCpuDevice());
}

}  // namespace psring
