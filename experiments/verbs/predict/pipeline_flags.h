// The flags of psring predict about pipelines.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/simulator/pipeline.h"
#include "experiments/verbs/predict/predict.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {

void AddPipelineFlags(CLI::App& verb, RawPredictFlags& raw);

// Those that need --pp, and those that a divided model excludes.
std::vector<GivenFlag> FlagsOfPipelines(const RawPredictFlags& raw);
std::vector<GivenFlag> FlagsOfReplicas(const RawPredictFlags& raw);

// Nothing without --pp. `flags`: all others are understood; the case has neither a strategy nor workers.
// InvalidArgument or NotFound, with a message of one line: flags that exclude each other, or what
// CheckPipeline finds for one of the numbers of workers.
absl::StatusOr<std::optional<PipelineCase>> UnderstandPipeline(const RawPredictFlags& raw,
                                                               const PredictFlags& flags);

}  // namespace psring
