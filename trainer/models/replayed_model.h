// A recorded workload in a network's place: gradients of its true sizes become ready at the recorded times,
// and computing is a timer, which leaves the processor to those who communicate.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "common/workloads/workload.h"
#include "trainer/data/data.h"
#include "trainer/models/model.h"

namespace psring {

// What `options` train: a row of Models(), --width wide, or with --workload a row made for the recording.
// InvalidArgument: a model without a width is given one.
absl::StatusOr<ModelRow> ModelOf(const TrainingOptions& options);

// The data that they train on; a recording has none, and gets samples without content.
absl::StatusOr<DataSplits> DataOf(const TrainingOptions& options);

// Forward waits for forward_ms. Backward writes one value of each tensor, reports it when it is due, and ends
// after backward_ms, by the clock, so that delays do not add up; the rest of the gradient stays 0. Weights
// begin as zeros. The loss is 0.
std::unique_ptr<Model> MakeReplayedModel(const Workload& workload);

}  // namespace psring
