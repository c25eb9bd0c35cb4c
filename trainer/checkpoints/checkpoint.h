// What a checkpoint of training holds, and what can be made of one by a run that is not quite the same. Pure;
// where it is kept is common/checkpoint_folder.h's affair.
//
// model.safetensors and optimizer.safetensors name tensors by their layers, shaped and ordered as PyTorch has
// them (filters [out][in][height][width], inputs behind a picture [channels][height][width]), without a word
// of devices or of how replicas were kept in step; training.json says where training stood. Where gradients
// travel in 16 bits worker<R>.safetensors holds what rounding has left of worker R's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/io/checkpoint_folder.h"
#include "trainer/checkpoints/training_position.h"

namespace psring {

// Everything else is a function of these: of random numbers, the order of an epoch of seed and epoch, delays
// of seed, worker and step.
struct TrainingCheckpoint {
  TrainingPosition position;
  std::vector<float> weights;             // as the model's layout has them
  std::vector<std::vector<float>> slots;  // of OptimizerSlots, in their order
  CheckpointFiles worker_files = {};      // what EncodeResidual made, as WorkerFile names it
};

CheckpointFiles EncodeCheckpoint(const TrainingCheckpoint& checkpoint, const ParameterLayout& layout);
// One worker's, of as many elements as the layout has.
std::string EncodeResidual(ConstSpan residual, const ParameterLayout& layout);

// Where a checkpoint was found, as bytes. A file of weights from elsewhere has no position and no optimizer.
struct CheckpointBytes {
  std::string path;    // as errors call it
  std::string folder;  // it is this one, whole; empty: weights from elsewhere
  std::string position, model, optimizer;
  std::string residual;        // this rank's worker file
  bool has_optimizer = false;  // also where its bytes are on another rank
  int64_t sequence = 0;        // at least that of the newest in its folder, which may be damaged
};

// Reads a folder step<N>, the newest whole one of a folder of these, or a file in one. A file of another
// place is taken for weights alone. `note` gets a line where the newest is damaged and one before is taken.
// NotFound where there is nothing, DataLoss where all are damaged.
absl::StatusOr<CheckpointBytes> LoadCheckpoint(const std::string& path, std::vector<std::string>& notes);

// The errors say in one line, with the path, what is wrong: damaged (DataLoss), of a newer psring or another
// type (Unimplemented), of another model (InvalidArgument; names the tensor).
absl::StatusOr<TrainingPosition> DecodePosition(const CheckpointBytes& bytes);
absl::StatusOr<TrainingCheckpoint> DecodeCheckpoint(const CheckpointBytes& bytes,
                                                    const ParameterLayout& layout);
// Stays empty where there is none.
absl::Status DecodeResidual(const CheckpointBytes& bytes, const ParameterLayout& layout,
                            std::vector<float>& residual);

// How a run goes on from a checkpoint.
struct ResumePlan {
  int64_t step = 0;
  int64_t samples = 0;
  bool with_slots = false;       // the optimizer's state is of use
  bool with_residuals = false;   // what rounding has left of each worker's gradients is, too
  std::vector<int> ready_order;  // the layout's tensors; empty: not known
  // Where each worker goes on in its samples, where they need not all be at `step`, and how many more updates
  // than that of each worker there were.
  std::vector<int64_t> worker_steps;
  int beyond = 0;
  std::vector<std::string> notes;  // what cannot be carried over exactly, a line each
};
// `now`: the run's own, at its beginning. `steps_per_epoch`: of its sampler. `has_slots`: of the checkpoint.
// `residuals`: so many workers' are in it.
ResumePlan PlanResume(const TrainingPosition& from, const TrainingPosition& now, int64_t steps_per_epoch,
                      bool has_slots, int residuals, const ParameterLayout& layout);

}  // namespace psring
