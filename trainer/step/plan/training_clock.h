// The progress of a worker's training: steps, updates and samples. Pure.
#pragma once

#include <cstdint>

#include "trainer/step/plan/training_plan.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// What a step and an update are for a strategy.
struct StepCounting {
  // Each worker's gradient is an update of its own; else an update contains the gradients of all.
  bool each_push = false;
  // Workers take steps from a common budget; else each makes as many. Only with each_push.
  bool shares_steps = false;
};
StepCounting CountingOf(const StrategyRow& strategy);

class TrainingClock {
 public:
  TrainingClock(const StepPlan& plan, int workers, StepCounting counting)
      : plan_(plan), workers_(workers), counting_(counting) {}

  // Training resumes: `samples` were trained on in all updates before `step`. The checkpoint may have drawn
  // them with another global batch. `beyond`: updates beyond `step` of each worker.
  void ResumeAt(int64_t step, int64_t samples, int beyond);

  // The first step, after ResumeAt, or the one to which training goes back.
  void BeginAt(int64_t step);
  void GoBackTo(int64_t step);
  // Step next() is finished.
  void Finish(const StepReport& report);
  // All workers have finished.
  void End();

  int64_t next() const { return next_; }  // this worker's next step
  bool is_over() const;
  // Of all workers' work, in steps of a worker.
  int64_t steps_done() const;
  // The step that numbers a checkpoint made now.
  int64_t checkpoint_step() const { return counting_.shares_steps ? steps_done() : next_; }
  // In the weights: all workers' updates.
  int64_t updates() const { return counting_.each_push ? version_ : steps_done(); }
  int64_t samples() const { return samples_; }
  // The samples in the first `updates` updates; unless each_push, those so far.
  int64_t SamplesAt(int64_t updates) const;
  bool each_push() const { return counting_.each_push; }

 private:
  int64_t SamplesBefore(int64_t step) const;
  int64_t SamplesOf(int64_t version) const;

  const StepPlan plan_;
  const int workers_;
  const StepCounting counting_;
  struct {
    int64_t step = 0, samples = 0, version = 0;
  } resumed_;
  int64_t next_ = 0;
  int64_t version_ = 0;  // with each_push: updates in this rank's weights
  int64_t samples_ = 0;  // in all updates so far
};

}  // namespace psring
