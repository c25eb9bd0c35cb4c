// How the workers of a step divide it: replicas of the model, each cut into the stages of a pipeline, or with
// divided matrices, or both. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "trainer/programs/mesh.h"

namespace psring {

// The value of --layouts for SupportedLayouts.
inline constexpr char kAutoLayouts[] = "auto";

// All layouts of so many workers that the trainer supports: every divisor for each axis on which a replica is
// divided, replicas take the rest. Those with the most replicas first.
std::vector<Layout> SupportedLayouts(int workers);

// "dp2,pp2,dp2xtp2". InvalidArgument names a layout that has another form, no second worker or too many, or
// is named twice.
absl::StatusOr<std::vector<Layout>> ParseLayouts(const std::string& text);

// The micro-batches of a step, which its replicas share, without --micro_batches: at least four for each
// stage of the longest pipeline, so that the bubble of 1f1b is below a fifth without replicas; and equally
// many for every replica, except of layouts for which that would be more than 4096.
int DefaultMicroBatches(const std::vector<Layout>& layouts);

struct CompareOptions;
// Whether layouts train different weights, so that their accuracy is compared: with several strategies, or a
// program without a flush.
bool LayoutsLearnDifferently(const CompareOptions& options);

struct Probe;
// InvalidArgument: the model of `probe` cannot be cut into the stages, or at the --cuts, of `training`, or
// its matrices cannot be divided so.
absl::Status CheckPartsOf(const TrainingOptions& training, const Probe& probe);

}  // namespace psring
