// The updates of a stage whose program has no flush, such as pipedream, and the versions of its weights that
// are kept for micro-batches in flight.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "trainer/data/sampler.h"
#include "trainer/pipeline/rank_plan.h"
#include "trainer/programs/walk_program.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Makes a step of the strategy of every update. Used by the training thread; its work is on the compute
// stream and the strategy's.
class StageUpdates {
 public:
  // Borrowed.
  struct Parts {
    Device& device;
    Stream& compute;
    SyncStrategy& sync;
    Span weights;         // the newest version
    int predictions = 1;  // of a sample (SampleSpec::labels)
  };
  static absl::StatusOr<std::unique_ptr<StageUpdates>> Create(const Parts& parts, StageVersions versions);

  // `drawn`: the samples of the step.
  void BeginStep(const StepInfo& step, const SampledStep& drawn);
  // What the passes of a micro-batch read. Internal: the version is not there.
  absl::StatusOr<ConstSpan> WeightsFor(int micro_batch) const;
  // After the backward pass of `micro_batch`, the last of an update, for each part of its buckets. The first
  // call keeps the newest version if later micro-batches read it.
  absl::Status Reduce(int micro_batch, absl::Span<const Bucket> buckets);
  // After all of these, for each part; the first call returns when the newest version is in place.
  absl::Status Update(int micro_batch);

  // After the last update of a step: all of the strategy's reports as one, without exposed_ns. Each bucket
  // has the staleness of its gradient, as of a push to a server.
  StepReport TakeReport() { return std::move(report_); }
  // When updates waited for communication.
  const std::vector<NodeTime>& exposed() const { return exposed_; }

  size_t bytes() const { return versions_.older() * parts_.weights.bytes(); }  // of older versions

 private:
  struct Kept {
    Buffer memory;
    int version = -1;  // -1: none
  };
  StageUpdates(const Parts& parts, StageVersions versions) : parts_(parts), versions_(std::move(versions)) {}

  absl::Status KeepNewest(int micro_batch);
  bool IsReadAfter(int micro_batch, int version) const;
  void Add(StepReport report, int last);

  const Parts parts_;
  const StageVersions versions_;
  std::vector<Kept> kept_;
  // Of the present step.
  std::vector<StepInfo> infos_;  // by update
  int made_ = 0;                 // updates, of which the last may be in progress
  bool is_updating_ = false;
  StepReport report_;
  std::vector<NodeTime> exposed_;
};

}  // namespace psring
