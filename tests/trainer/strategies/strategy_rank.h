// One rank of a strategy, which tests call through its interface, with made-up gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/common/ops/reference_ops.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// Neither 2 nor 3 divides all counts.
inline constexpr size_t kOddCount = 1003;
inline const std::vector<Bucket> kOddBuckets = {{0, 900, 103}, {1, 7, 893}, {2, 0, 7}};
inline constexpr int64_t kRankSamples = 7;  // of each rank, in a step

struct StrategyRank {
  std::unique_ptr<Device> device = MakeCpuDevice();
  std::unique_ptr<Ops> ops = MakeReferenceOps();
  std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute, "compute");
  Trace trace{0};
  std::vector<float> weights = std::vector<float>(kOddCount), gradient = weights;
  Strategy strategy;  // last: it uses the above

  StrategyRank(const StrategyRow& row, int rank, int workers, ProcessGroup* group, PsClient* client,
               const UpdateRule& rule)
      : strategy(Implement(row, {.rank = rank,
                                 .world_size = workers,
                                 .device = *device,
                                 .ops = *ops,
                                 .compute = *compute,
                                 .trace = trace,
                                 .buckets = kOddBuckets,
                                 .update = rule,
                                 .group = group,
                                 .servers = {.client = client,
                                             .consistency = row.algorithm,
                                             .asynchronous = row.asynchronous(),
                                             .timeout = absl::Seconds(10)}})
                     .value()) {}

  // For SyncStrategy::Start.
  TrainingState State() {
    return {.weights = HostView::Of(Span{weights.data(), kOddCount}),
            .gradient = HostView::Of(Span{gradient.data(), kOddCount})};
  }

  // Up to the last GradientReady.
  absl::Status BeginStep(int64_t step, int workers) {
    const int64_t samples = kRankSamples * workers;
    PSRING_RETURN_IF_ERROR(strategy.sync->BeginStep({.step = step,
                                                     .samples = kRankSamples,
                                                     .global_samples = samples,
                                                     .global_samples_before = step * samples}));
    for (const Bucket& bucket : kOddBuckets) strategy.sync->GradientReady({&bucket, 1}, compute->Record());
    return absl::OkStatus();
  }

  absl::StatusOr<StepReport> Step(int64_t step, int workers) {
    PSRING_RETURN_IF_ERROR(BeginStep(step, workers));
    return strategy.sync->FinishStep();
  }
};

}  // namespace psring
