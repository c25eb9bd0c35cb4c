#include "trainer/step/plan/training_clock.h"

#include <algorithm>

namespace psring {

StepCounting CountingOf(const StrategyRow& strategy) {
  return {.each_push = strategy.asynchronous(), .shares_steps = strategy.shares_steps};
}

void TrainingClock::ResumeAt(int64_t step, int64_t samples, int beyond) {
  resumed_ = {.step = step, .samples = samples, .version = step * workers_ + beyond};
}

void TrainingClock::BeginAt(int64_t step) {
  version_ = resumed_.version;
  GoBackTo(step);
}

void TrainingClock::GoBackTo(int64_t step) {
  next_ = step;
  samples_ = SamplesBefore(step);
  // With each_push: as if the other workers were at this step, too; the next answer tells the version.
  version_ = std::min(version_, resumed_.version + (step - resumed_.step) * workers_);
}

void TrainingClock::Finish(const StepReport& report) {
  GoBackTo(report.next_step >= 0 ? report.next_step : next_ + 1);
  if (!counting_.each_push) return;
  if (report.next_step < 0) version_ = report.version;  // else a server went back
  samples_ = SamplesOf(version_);
}

void TrainingClock::End() {
  if (!counting_.each_push) return;
  version_ = plan_.total_steps() * workers_;
  samples_ = SamplesOf(version_);
}

bool TrainingClock::is_over() const {
  if (!counting_.shares_steps) return next_ >= plan_.total_steps();
  return SharedStepsAreOver(version_, workers_, plan_.total_steps());
}

int64_t TrainingClock::steps_done() const {
  return counting_.each_push ? std::min(version_ / workers_, plan_.total_steps()) : next_;
}

int64_t TrainingClock::SamplesAt(int64_t updates) const {
  return counting_.each_push ? SamplesOf(updates) : samples_;
}

int64_t TrainingClock::SamplesBefore(int64_t step) const {
  return resumed_.samples + plan_.SamplesBefore(step) - plan_.SamplesBefore(resumed_.step);
}

int64_t TrainingClock::SamplesOf(int64_t version) const {
  return resumed_.samples + plan_.SamplesIn(version, workers_) - plan_.SamplesIn(resumed_.version, workers_);
}

}  // namespace psring
