// Counters that are read between a rank's steps, and the cost of recording.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"

namespace psring {

// Nanoseconds that this process's living threads spent runnable but waiting for a processor, in total
// (/proc/self/task/*/schedstat); nothing if the kernel does not count it.
std::optional<int64_t> RunDelayNanos();
// From one thread's schedstat: "time on a processor, time waiting for one, time slices". Pure.
std::optional<int64_t> RunDelayOf(const std::string& schedstat);

// Bytes, with headers, that the network interface has sent so far for all processes, as counted by the kernel
// in this process's network namespace. Data that is split into frames later (segmentation offload) counts
// with one header. NotFound lists the interfaces.
absl::StatusOr<int64_t> InterfaceTxBytes(const std::string& interface);
// The same from the text of /proc/net/dev. Pure.
absl::StatusOr<int64_t> InterfaceTxBytesOf(const std::string& proc_net_dev, const std::string& interface);

// Processor time used by this thread.
int64_t ThreadCpuNanos();

// Means over measured steps, in ms.
struct StepMeans {
  double computed_ms = 0;  // from a step's begin until its gradient is complete
  double update_ms = 0;    // the optimizer's, on this rank
};
// `begins`: of the measured steps, on the trace's clock. Steps without spans, because the trace was full, are
// omitted. Pure.
std::optional<StepMeans> MeansOf(const std::vector<TraceSpan>& spans,
                                 const std::map<int64_t, int64_t>& begins);

// Used by the training thread between steps.
class StepProbe {
 public:
  using Counter = std::function<absl::StatusOr<int64_t>()>;

  // `sent`: bytes sent by an interface; may be empty. Returns its error. Counters of the process or its
  // interface are divided evenly among its `ranks`.
  static absl::StatusOr<StepProbe> Start(Counter sent, int ranks = 1, Clock clock = MonotonicNanos,
                                         Clock cost = ThreadCpuNanos);

  // After each step; `keep` writes its record.
  template <typename Keep>
  void OnStep(const StepRecord& step, Keep keep) {
    const int64_t begin = cost_();
    keep();
    Count(step);
    if (!step.warmup) own_ns_ += cost_() - begin;
  }

  // After training.
  void Fill(const Trace& trace, RankResult& result);

 private:
  // A counter that is too expensive to read after every short step.
  struct Reading {
    int64_t steps = -1;  // measured steps before it; -1: not read
    int64_t value = 0;
  };

  StepProbe(Counter sent, int ranks, Clock clock, Clock cost)
      : sent_(std::move(sent)), ranks_(ranks), clock_(std::move(clock)), cost_(std::move(cost)) {
    begins_.resize(Trace::kCapacity);  // touches the memory
    begins_.clear();
  }
  void Count(const StepRecord& step);
  void ReadSent();
  void ReadDelay();

  Counter sent_;
  int ranks_ = 1;
  Clock clock_;
  Clock cost_;  // the thread's processor time, which does not include waits for a processor
  int64_t steps_ = 0, own_ns_ = 0;
  Reading first_sent_, last_sent_, first_delay_, last_delay_;  // before and during the measured steps
  int64_t read_ns_ = INT64_MIN, next_sent_ = 1;
  bool warm_ = false;  // a measured step has been seen
  // Number and begin of each measured step that can have spans in the trace. Reserved and touched once, so
  // that no step allocates memory (see Workplace in common/ops/onednn_kernel.h) and a long run's does not
  // grow.
  std::vector<std::pair<int64_t, int64_t>> begins_;
};

}  // namespace psring
