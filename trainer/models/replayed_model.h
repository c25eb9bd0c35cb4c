// A recorded workload instead of a network: gradients of the recorded sizes become ready at the recorded
// times. A timer replaces computing, so the processor is free for communication.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "common/workloads/workload.h"
#include "trainer/data/dataset.h"
#include "trainer/models/model.h"

namespace psring {

// The model of `options`: a row of `rows`, with its sizes (--width), or a row for the recording of
// --workload. InvalidArgument: a size that the model does not have, --dropout of a model without it, or
// --recompute without units.
absl::StatusOr<ModelRow> ModelOf(const TrainingOptions& options, const ModelTable& rows = Models());

// For NewActivations.
inline Keep KeepOf(const TrainingOptions& options) {
  return options.recompute ? Keep::kUnitInputs : Keep::kAll;
}

// The training data, without those held out by --validation; a recording gets samples without content.
absl::StatusOr<DataSplits> DataOf(const TrainingOptions& options);

// Forward waits for forward_ms. Backward writes one value of each tensor at its time, and ends after
// backward_ms. Times are absolute, so that delays do not add up, except of a unit that may
// have waited (ModelState::after_wait). The rest of the gradient, the initial weights and the loss are 0. A
// stage of it takes the time of its layers.
std::unique_ptr<Model> MakeReplayedModel(const Workload& workload);

}  // namespace psring
