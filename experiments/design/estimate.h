// Estimates durations from one short training. Pure.
#pragma once

#include <string>

#include "experiments/design/plan.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

// Bytes of `elements` in an exchange. An all-reduce sends 16-bit elements in both directions; a server
// receives 16 bits and sends 32 (CommPattern::pushed).
double ExchangeBytes(const Configuration& configuration, int64_t elements);

// Parses a value of --server_placement.
ServerPlace PlaceOf(const std::string& placement);

CommPattern PatternOf(const Configuration& configuration, Scheme scheme);

// One worker's step without its exchange, if the worker does not share its core.
double ComputeSeconds(const TrainingOptions& training, const Probe& probe);

// The part of a step in which a rank of a pipeline has nothing to compute, by the program's formula, which
// omits messages; 0: no pipeline, or no formula.
double BubbleOf(const TrainingOptions& training);

double SamplesPerSecond(const Configuration& configuration, const Probe& probe, int cores);

// A launch without its steps and evaluations.
double LaunchOverheadSeconds(const Configuration& configuration, const Probe& probe, int cores);

// One evaluation on all test data.
double EvaluationSeconds(const TrainingOptions& training, const Probe& probe);

// One launch.
double ExpectedLaunchSeconds(const Configuration& configuration, const Probe& probe, int cores);

}  // namespace psring
