// How long things should take, before they have been tried: rough figures from one short training. Pure.
#pragma once

#include "experiments/plan/plan.h"
#include "experiments/theory/cost_model.h"

namespace psring {

// Who sends what to whom under `configuration`.
// What an exchange moves of `elements`, before PatternOf's share of a push: an all-reduce in 16 bits moves
// half of what one in float32 does, both ways.
double ExchangeBytes(const Configuration& configuration, int64_t elements);

CommPattern PatternOf(const Configuration& configuration, Scheme scheme);

// One step, with the exchange in it. More workers than cores take turns.
double StepSeconds(const Configuration& configuration, const Probe& probe, int cores);

double SamplesPerSecond(const Configuration& configuration, const Probe& probe, int cores);

// A launch besides its steps and its evaluations.
double LaunchOverheadSeconds(const Configuration& configuration, const Probe& probe, int cores);

// One evaluation on all test data.
double EvaluationSeconds(const TrainingOptions& training, const Probe& probe);

// One launch, from the first process to the last record.
double ExpectedLaunchSeconds(const Configuration& configuration, const Probe& probe, int cores);

}  // namespace psring
