#include "trainer/pipeline/stage_updates.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {

absl::StatusOr<std::unique_ptr<StageUpdates>> StageUpdates::Create(const Parts& parts,
                                                                   StageVersions versions) {
  auto made = std::unique_ptr<StageUpdates>(new StageUpdates(parts, std::move(versions)));
  made->kept_.resize(made->versions_.older());
  for (Kept& kept : made->kept_) {
    PSRING_ASSIGN_OR_RETURN(kept.memory, parts.device.Allocate(parts.weights.bytes()));
  }
  return made;
}

void StageUpdates::BeginStep(const StepInfo& step, const SampledStep& drawn) {
  infos_.clear();
  int64_t before = step.global_samples_before;
  for (size_t m = 0; m < drawn.batches.size(); ++m) {
    if (m % static_cast<size_t>(versions_.update_every) == 0) {
      infos_.push_back({.step = step.step,
                        .global_samples_before = before,
                        .update = step.step * versions_.updates() + static_cast<int64_t>(infos_.size())});
    }
    StepInfo& info = infos_.back();
    const int64_t own = static_cast<int64_t>(drawn.batches[m].size()) * parts_.predictions;
    info.samples += own;
    info.machine_samples += own;
    info.global_samples += drawn.global_of_batches[m];
    before += drawn.global_of_batches[m];
  }
  for (Kept& kept : kept_) kept.version = -1;
  made_ = 0;
  is_updating_ = false;
  report_ = {};
  exposed_.clear();
}

absl::StatusOr<ConstSpan> StageUpdates::WeightsFor(int micro_batch) const {
  const int version = versions_.read[static_cast<size_t>(micro_batch)];
  if (version == made_) return ConstSpan(parts_.weights);
  const auto kept = std::ranges::find(kept_, version, &Kept::version);
  if (kept != kept_.end()) return ConstSpan(kept->memory.span());
  return Internal("micro-batch ", micro_batch, " reads version ", version,
                  " of the weights, which is not kept after ", made_, " updates");
}

// Versions never decrease from one micro-batch to the next.
bool StageUpdates::IsReadAfter(int micro_batch, int version) const {
  return std::binary_search(versions_.read.begin() + micro_batch + 1, versions_.read.end(), version);
}

absl::Status StageUpdates::KeepNewest(int micro_batch) {
  if (!IsReadAfter(micro_batch, made_)) return absl::OkStatus();
  const auto free = std::ranges::find_if(
      kept_, [&](const Kept& kept) { return kept.version < 0 || !IsReadAfter(micro_batch, kept.version); });
  if (free == kept_.end()) {
    return Internal("no memory for version ", made_, " of the weights");
  }
  parts_.compute.Copy(free->memory.data(), parts_.weights.data, parts_.weights.bytes());
  free->version = made_;
  return absl::OkStatus();
}

// An update without samples, in a short last step, changes nothing.
absl::Status StageUpdates::Reduce(int micro_batch, absl::Span<const Bucket> buckets) {
  const StepInfo& info = infos_[static_cast<size_t>(made_)];
  if (!std::exchange(is_updating_, true)) {
    PSRING_RETURN_IF_ERROR(KeepNewest(micro_batch));
    if (info.global_samples > 0) PSRING_RETURN_IF_ERROR(parts_.sync.BeginStep(info));
  }
  if (info.global_samples > 0) parts_.sync.GradientReady(buckets, parts_.compute.Record());
  return absl::OkStatus();
}

absl::Status StageUpdates::Update(int micro_batch) {
  if (!std::exchange(is_updating_, false)) return absl::OkStatus();
  if (infos_[static_cast<size_t>(made_)].global_samples > 0) {
    PSRING_ASSIGN_OR_RETURN(StepReport report, parts_.sync.FinishStep());
    Add(std::move(report), micro_batch);
  }
  ++made_;
  return absl::OkStatus();
}

// `last`: of the update's micro-batches, whose gradients are those of as many pushes.
void StageUpdates::Add(StepReport report, int last) {
  const int first = made_ * versions_.update_every;
  int64_t most = 0, sum = 0;
  for (int m = first; m <= last; ++m) {
    const int64_t staleness = made_ - versions_.read[static_cast<size_t>(m)];
    most = std::max(most, staleness);
    sum += staleness;
  }
  int64_t arrived_ns = 0;
  for (BucketRecord& bucket : report.buckets) {
    bucket.staleness = most;
    bucket.staleness_sum = sum;
    bucket.pushes = last + 1 - first;
    arrived_ns = std::max(arrived_ns, bucket.end_ns);
  }
  if (report.exposed_ns > 0) exposed_.push_back({arrived_ns - report.exposed_ns, arrived_ns});
  report_.traffic = report_.traffic + report.traffic;
  report_.buckets.insert(report_.buckets.end(), report.buckets.begin(), report.buckets.end());
}

}  // namespace psring
