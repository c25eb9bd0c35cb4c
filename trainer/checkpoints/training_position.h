// The position of training in a checkpoint, as JSON. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/checkpoint_folder.h"
#include "common/ops/optimizer.h"

namespace psring {

// Identifies a training and its position.
struct TrainingPosition {
  std::string model, data, strategy;
  bool asynchronous = false;
  int64_t data_count = 0;   // samples to train on (tokens of a text, as below)
  int64_t drawn_batch = 0;  // samples that all workers draw for a step
  int workers = 1;
  uint64_t seed = 1;
  std::string wire = "float32";
  OptimizerConfig optimizer;
  LrSchedule schedule;
  std::vector<std::string> flags;

  int64_t sequence = 0;       // see CheckpointPath
  int64_t step = 0;           // the next step of each worker
  int64_t updates = 0;        // in the optimizer's state: Adam's t
  int64_t samples = 0;        // in all updates; determines the learning rate
  int64_t epoch = 0;          // the sampler's
  int64_t epoch_samples = 0;  // drawn from the epoch's order
  // Tensors in the order in which backward completes their gradients, from which buckets are planned. The
  // model determines it; it is here for readers of the file.
  std::vector<std::string> ready_order = {};
  // Asynchronous workers: each worker's next step. Empty: all are at `step`.
  std::vector<int64_t> worker_steps = {};
};

// The text of kPositionFile, with `hashes` of the other files, by name, and of itself.
std::string EncodePosition(const TrainingPosition& position,
                           const std::map<std::string, std::string>& hashes);

// Accepts any text. DataLoss: one line describes the damage; Unimplemented: it is of a newer psring.
absl::StatusOr<TrainingPosition> ParsePosition(const std::string& text);
// The hashes of the other files by name. Errors as above.
absl::StatusOr<std::map<std::string, std::string>> HashesIn(const std::string& text);

}  // namespace psring
