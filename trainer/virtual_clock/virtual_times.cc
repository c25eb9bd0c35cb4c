#include <cmath>

#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/files.h"
#include "trainer/virtual_clock/virtual_clock.h"

namespace psring {
namespace {

int64_t Ns(double ms) { return std::llround(ms * 1e6); }

}  // namespace

absl::StatusOr<VirtualTimes::Source> VirtualTimes::Read(const std::string& flag, const std::string& text) {
  Source source;
  const auto read = [&]() -> absl::Status {
    absl::string_view path = text;
    if (!absl::ConsumePrefix(&path, kTracePrefix)) {
      PSRING_ASSIGN_OR_RETURN(source.distribution, ParseTimeDistribution(text));
      return absl::OkStatus();
    }
    PSRING_ASSIGN_OR_RETURN(const std::string json, ReadFile(std::string(path), kMaxRecordBytes));
    PSRING_ASSIGN_OR_RETURN(source.trace, StepTimesFromJson(json));
    return absl::OkStatus();
  };
  const absl::Status status = read();
  if (status.ok()) return source;
  return InvalidArgument(flag, " ", text, ": ", status.message());
}

absl::StatusOr<VirtualTimes> VirtualTimes::Create(const TrainingOptions& options, double all_reduce) {
  if (options.compute_ms.empty()) {
    return absl::InvalidArgumentError(
        "--clock virtual needs --compute_ms, the duration of a step's computing (psring measures it)");
  }
  VirtualTimes times;
  times.seed_ = options.seed;
  times.all_reduce_ = all_reduce;
  PSRING_ASSIGN_OR_RETURN(times.stragglers_, ParseStragglers(options.straggler));
  PSRING_ASSIGN_OR_RETURN(times.jitter_, ParseTimeDistribution(options.jitter_ms));
  PSRING_ASSIGN_OR_RETURN(times.serve_, ParseTimeDistribution(options.serve_ms));
  PSRING_ASSIGN_OR_RETURN(times.compute_, Read("--compute_ms", options.compute_ms));
  PSRING_ASSIGN_OR_RETURN(times.network_, Read("--network_ms", options.network_ms));
  return times;
}

VirtualTimes::Compute VirtualTimes::ComputeOf(int worker, int64_t step) const {
  double compute_ms = 0;
  Compute compute;
  if (compute_.trace) {
    const MeasuredStep at = MeasuredStepFor(*compute_.trace, worker, step);
    compute_ms = compute_.trace->workers[at.worker].compute_ms[at.step];
    compute.other_ns = Ns(compute_.trace->workers[at.worker].other_ms[at.step]);
  } else {
    compute_ms = DrawMs(compute_.distribution, seed_, TimeUse::kCompute, worker, step);
  }
  compute.delay_ns = Ns(compute_ms * (SlownessOf(stragglers_, worker) - 1) +
                        DrawMs(jitter_, seed_, TimeUse::kJitter, worker, step));
  compute.own_ns = Ns(compute_ms) + compute.delay_ns;
  return compute;
}

// A measured exchange includes both directions; their proportion makes no difference here.
int64_t VirtualTimes::PushNs(int worker, int64_t step) const {
  if (!network_.trace) return Ns(DrawMs(network_.distribution, seed_, TimeUse::kPush, worker, step));
  return AllReduceNs(worker, step) / 2;
}

int64_t VirtualTimes::PullNs(int worker, int64_t step) const {
  if (!network_.trace) return Ns(DrawMs(network_.distribution, seed_, TimeUse::kPull, worker, step));
  return AllReduceNs(worker, step) - PushNs(worker, step);
}

int64_t VirtualTimes::ServeNs(int worker, int64_t step) const {
  return Ns(DrawMs(serve_, seed_, TimeUse::kServe, worker, step));
}

int64_t VirtualTimes::AllReduceNs(int worker, int64_t step) const {
  if (network_.trace) {
    const MeasuredStep at = MeasuredStepFor(*network_.trace, worker, step);
    return Ns(network_.trace->workers[at.worker].exchange_ms[at.step]);
  }
  // One exchange for all workers: drawn once per step.
  return Ns(all_reduce_ * DrawMs(network_.distribution, seed_, TimeUse::kPush, 0, step));
}

}  // namespace psring
