// Where a training stands, as the JSON of a checkpoint says it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/checkpoint_folder.h"
#include "common/ops/optimizer.h"

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
  // Asynchronous workers, each at a step of its own: the one it goes on with. Empty: all at `step`.
  std::vector<int64_t> worker_steps = {};
};

// The text of kPositionFile; with the hashes of the files that stand beside it, and of itself.
std::string EncodePosition(const TrainingPosition& position, const CheckpointFiles& files);

// Any text is taken. DataLoss says in one line what is wrong with it; Unimplemented: it is of a newer psring.
absl::StatusOr<TrainingPosition> ParsePosition(const std::string& text);
// Those of the files beside it, by their names. Errors as above.
absl::StatusOr<std::map<std::string, std::string>> HashesIn(const std::string& text);

}  // namespace psring
