// How the workers of a step divide it: replicas of the model, each cut into the stages of a pipeline. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "trainer/programs/mesh.h"

namespace psring {

// "dp2,pp2,dp2xpp2". InvalidArgument names a layout that has another form, no second worker or too many, or
// is named twice.
absl::StatusOr<std::vector<Layout>> ParseLayouts(const std::string& text);

// The micro-batches of a step, which its replicas share, without --micro_batches: at least four for each
// stage of the longest pipeline, so that the bubble of 1f1b is below a fifth without replicas; and equally
// many for every replica, except of layouts for which that would be more than 4096.
int DefaultMicroBatches(const std::vector<Layout>& layouts);

struct Probe;
// InvalidArgument: the model of `probe` cannot be cut into the stages, or at the --cuts, of `training`.
absl::Status CheckStagesOf(const TrainingOptions& training, const Probe& probe);

}  // namespace psring
