// Training in simulated time: N logical workers in one process, real gradients, the server of live runs, and
// a virtual clock that determines the order of events. The same flags give the same bits. The results are
// records of N ranks and a server, as of live runs, with the clock's times.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/options/training_options.h"
#include "trainer/data/dataset.h"

namespace psring {

inline constexpr int kMaxLogicalWorkers = 256;

struct VirtualRun {
  int workers = 1;
  Device& device;
  const DataSplits& data;
  // After each step of any worker, in order of virtual time. An error ends training.
  std::function<absl::Status(const StepRecord&)> on_step = [](const StepRecord&) { return absl::OkStatus(); };
  std::function<void(int64_t steps_done, int64_t steps_planned, double loss)> on_progress =
      [](int64_t, int64_t, double) {};
  std::function<void(const std::string& warning)> on_warning = [](const std::string&) {};
  std::function<void(int64_t predictions_done, int64_t predictions_planned)> on_evaluating = [](int64_t,
                                                                                                int64_t) {};
  std::function<void(const CurvePoint&)> on_evaluation = [](const CurvePoint&) {};
};

struct VirtualOutcome {
  std::vector<RankResult> ranks;
  std::vector<ServerResult> servers;  // one, or none
  std::vector<float> weights;         // final: the server's, or rank 0's
};

// Errors as for RunWorker; they name worker and step.
absl::StatusOr<VirtualOutcome> RunVirtual(const TrainingOptions& options, VirtualRun& run);

// The spans of a worker's step in its trace.
std::vector<TraceSpan> SpansOf(const StepRecord& record);

}  // namespace psring
