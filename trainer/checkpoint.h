// What a checkpoint of training holds, and what can be made of one by a run that is not quite the same. Pure;
// where it is kept is common/checkpoint_folder.h's affair.
//
// Three files: model.safetensors and optimizer.safetensors name tensors by their layers, shaped and ordered
// as PyTorch has them (filters [out][in][height][width], inputs behind a picture [channels][height][width]),
// without a word of devices or of how replicas were kept in step; training.json says where training stood.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint_folder.h"
#include "common/optimizer.h"
#include "common/parameters.h"

namespace psring {

// Where a training stands, and which it is.
struct TrainingPosition {
  std::string model, data, strategy;
  bool asynchronous = false;
  int64_t data_count = 0;   // samples to train on
  int64_t drawn_batch = 0;  // samples that all workers draw for a step
  int workers = 1;
  uint64_t seed = 1;
  std::string wire = "float32";
  OptimizerConfig optimizer;
  LrSchedule schedule;
  std::vector<std::string> flags;

  int64_t sequence = 0;  // see CheckpointPath
  int64_t step = 0;      // to go on with: so many are made, of each worker
  int64_t updates = 0;
  int64_t samples = 0;        // in these updates: the learning rate's clock
  int64_t epoch = 0;          // the sampler's
  int64_t epoch_samples = 0;  // so many of the epoch's order are drawn
  // In which gradients become ready: buckets were planned by it, and in another order sums may differ in
  // their last bits.
  std::vector<std::string> ready_order = {};
};

// Everything else is a function of these: of random numbers, the order of an epoch of seed and epoch, delays
// of seed, worker and step.
struct TrainingCheckpoint {
  TrainingPosition position;
  std::vector<float> weights;             // as the model's layout has them
  std::vector<std::vector<float>> slots;  // of OptimizerSlots, in their order
};

CheckpointFiles EncodeCheckpoint(const TrainingCheckpoint& checkpoint, const ParameterLayout& layout);

// Where a checkpoint was found, as bytes. A file of weights from elsewhere has no position and no optimizer.
struct CheckpointBytes {
  std::string path;  // as errors call it
  std::string position, model, optimizer;
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

// How a run goes on from a checkpoint.
struct ResumePlan {
  int64_t step = 0;
  int64_t samples = 0;
  bool with_slots = false;         // the optimizer's state is of use
  std::vector<int> ready_order;    // the layout's tensors; empty: not known
  std::vector<std::string> notes;  // what cannot be carried over exactly, a line each
};
// `now`: the run's own, at its beginning. `steps_per_epoch`: of its sampler. `has_slots`: of the checkpoint.
ResumePlan PlanResume(const TrainingPosition& from, const TrainingPosition& now, int64_t steps_per_epoch,
                      bool has_slots, const ParameterLayout& layout);

}  // namespace psring
