// What is counted beside a rank's steps, and what counting itself costs.
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

// Nanoseconds for which this process's threads could have run and waited for a processor, all of them
// together and those that still live (/proc/self/task/*/schedstat); nothing where the kernel keeps no such
// account.
std::optional<int64_t> RunDelayNanos();
// Of one thread's schedstat: "time on a processor, time waiting for one, turns". Pure.
std::optional<int64_t> RunDelayOf(const std::string& schedstat);

// Of the processor's time, what this thread has used.
int64_t ThreadCpuNanos();

// Means over measured steps, in ms.
struct StepMeans {
  double computed_ms = 0;  // from a step's begin until its whole gradient was handed over
  double update_ms = 0;    // the optimizer's, on this rank
};
// `begins`: of the measured steps, on the trace's clock. Steps whose spans the trace no longer had room for
// are left out. Pure.
std::optional<StepMeans> MeansOf(const std::vector<TraceSpan>& spans,
                                 const std::map<int64_t, int64_t>& begins);

// One thread: the training's, between its steps.
class StepProbe {
 public:
  using Counter = std::function<absl::StatusOr<int64_t>()>;

  // `sent`: bytes that have left through an interface; none where it is empty. Errors are its own. What is
  // counted of the process or its interface is shared evenly among its `ranks`.
  static absl::StatusOr<StepProbe> Start(Counter sent, int ranks = 1, Clock clock = MonotonicNanos,
                                         Clock cost = ThreadCpuNanos);

  // After each step; `record` is what keeping it takes (writing it down).
  template <typename Keep>
  void OnStep(const StepRecord& step, Keep keep) {
    const int64_t begin = cost_();
    keep();
    Count(step);
    if (!step.warmup) own_ns_ += cost_() - begin;
  }

  // Once training is over.
  void Fill(const Trace& trace, RankResult& result);

 private:
  // What is read now and then: its reading costs more than a short step should pay.
  struct Reading {
    int64_t steps = -1;  // measured ones before it; -1: none was made
    int64_t value = 0;
  };

  StepProbe(Counter sent, int ranks, Clock clock, Clock cost)
      : sent_(std::move(sent)), ranks_(ranks), clock_(std::move(clock)), cost_(std::move(cost)) {
    begins_.reserve(Trace::kCapacity);
  }
  void Count(const StepRecord& step);
  void ReadSent();
  void ReadDelay();

  Counter sent_;
  int ranks_ = 1;
  Clock clock_;
  Clock cost_;  // what the thread has used: where it waits for a processor others do, too
  int64_t steps_ = 0, own_ns_ = 0;
  Reading first_sent_, last_sent_, first_delay_, last_delay_;  // before the measured steps; among them
  int64_t read_ns_ = INT64_MIN, next_sent_ = 1;
  bool warm_ = false;  // a measured step has been seen
  // The number and begin of each measured step that can have spans in the trace. Reserved once: see Workplace
  // in common/onednn/kernel.h for what a heap block per step would cost.
  std::vector<std::pair<int64_t, int64_t>> begins_;
};

}  // namespace psring
