// The contents of a checkpoint, and how a run with other settings continues from it. Pure; the folder is in
// common/io/checkpoint_folder.h.
//
// model.safetensors and optimizer.safetensors name tensors by their layers, with PyTorch's shapes and order
// (filters [out][in][height][width], inputs that form an image [channels][height][width]), independent of
// devices and strategy. training.json is the position of training. With gradients in 16 bits
// worker<R>.safetensors contains worker R's residual (ErrorFeedback). Buffers are with the weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/file_content.h"
#include "common/tables/row_range.h"
#include "trainer/checkpoints/training_position.h"

namespace psring {

// All other state follows from these: an epoch's order from seed and epoch, delays from seed, worker and
// step.
struct TrainingCheckpoint {
  TrainingPosition position;
  std::vector<float> weights;             // in the order of the model's layout
  std::vector<std::vector<float>> slots;  // in the order of OptimizerSlots
  std::vector<float> buffers = {};        // ParameterLayout::buffers, of rank 0
  // Reads the tables, which are never in memory as a whole; null if there are none. The slots of their
  // optimizer can be read if there are `slots`.
  ReadRows rows = {};
  CheckpointFiles worker_files = {};  // from EncodeResidual, named by WorkerFile
};

// Errors are those of `checkpoint.rows` and of `sink`.
absl::Status WriteCheckpoint(const TrainingCheckpoint& checkpoint, const ParameterLayout& layout,
                             CheckpointSink& sink);
// One worker's residual, with an element per parameter.
std::string EncodeResidual(ConstSpan residual, const ParameterLayout& layout);

// The files of a checkpoint. A file of weights from another source has no position and no optimizer.
struct CheckpointBytes {
  std::string path;    // as named in errors
  std::string folder;  // of a complete checkpoint; empty: weights from another source
  std::string position;
  FileContent model, optimizer;  // of a folder: in files that stay open
  FileContent residual;          // this rank's worker file
  bool has_optimizer = false;    // true also if its bytes are on another rank
  int64_t sequence = 0;          // at least that of the newest in its folder, which may be damaged
};

// `path`: a folder step<N>, a folder of these (reads the newest complete one), or a file in a step<N>. Any
// other file is read as weights only. `notes` gets a line if the newest is damaged and an earlier one is
// used. NotFound: no checkpoint; DataLoss: all are damaged.
absl::StatusOr<CheckpointBytes> LoadCheckpoint(const std::string& path, std::vector<std::string>& notes);

// Errors are one line with the path: damaged (DataLoss), of a newer psring or another type (Unimplemented),
// of another model (InvalidArgument; names the tensor). The checkpoint's `rows` read from the files.
absl::StatusOr<TrainingPosition> DecodePosition(const CheckpointBytes& bytes);
absl::StatusOr<TrainingCheckpoint> DecodeCheckpoint(const CheckpointBytes& bytes,
                                                    const ParameterLayout& layout);
// `residual` stays empty if there is none.
absl::Status DecodeResidual(const CheckpointBytes& bytes, const ParameterLayout& layout,
                            std::vector<float>& residual);

// How a run continues from a checkpoint.
struct ResumePlan {
  int64_t step = 0;
  int64_t samples = 0;
  bool with_slots = false;      // the optimizer's state is used
  int64_t earlier_updates = 0;  // see OptimizerConfig
  bool with_residuals = false;  // each worker's residual is used
  // Each worker's next step, if not all are at `step`; and the number of updates beyond those of `step` steps
  // of every worker.
  std::vector<int64_t> worker_steps;
  int beyond = 0;
  std::vector<std::string> notes;  // what is not restored exactly, one line each
};
// `now`: of this run at its beginning. `steps_per_epoch`: of its sampler. `has_slots` and `residuals`:
// whether the checkpoint contains optimizer slots, and how many workers' residuals.
ResumePlan PlanResume(const TrainingPosition& from, const TrainingPosition& now, int64_t steps_per_epoch,
                      bool has_slots, int residuals);

}  // namespace psring
