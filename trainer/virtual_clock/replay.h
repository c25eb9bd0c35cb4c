// Repeats an asynchronous run: applies the gradients of all workers in the recorded order of arrival.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/arrivals.h"
#include "common/options/training_options.h"
#include "trainer/data/dataset.h"

namespace psring {

struct Replay {
  Device& device;
  const DataSplits& data;
  std::function<void(int64_t updates_done, int64_t updates)> on_progress = [](int64_t, int64_t) {};
};

struct ReplayOutcome {
  std::string weights_hash;  // of the server's final weights, as in RankResult
  std::vector<float> weights;
  int64_t updates = 0;  // of the first bucket
};

// `options` are those of the run. The same processor and libraries give the same bits. InvalidArgument: the
// arrivals do not match the options (workers, buckets, strategy), or their order is impossible.
absl::StatusOr<ReplayOutcome> ReplayArrivals(const TrainingOptions& options, const Arrivals& arrivals,
                                             Replay& replay);

}  // namespace psring
