// Checkpoints of training on the disk: a folder of folders step<N>, each with a few files, whole or not there
// at all. What the files say is trainer/checkpoint.h's affair.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

// The file of a checkpoint that says where training stood; a folder without it is no checkpoint.
inline constexpr char kPositionFile[] = "training.json";
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";

// What one worker alone has: worker<RANK>.safetensors.
std::string WorkerFile(int rank);

struct CheckpointPath {
  int64_t step = 0;
  // Counts the checkpoints of a training, over all the runs that have gone on with it: steps do not, because
  // a run with more workers makes fewer. -1: it cannot be read.
  int64_t sequence = -1;
  std::string path;  // of its folder
};

// Newest first: by `sequence`. Empty where `folder` does not exist.
std::vector<CheckpointPath> ListCheckpoints(const std::string& folder);

// Makes `folder` where it is missing, and takes away what writers before have left unfinished in it.
// InvalidArgument where one cannot write there, or where it holds a
// checkpoint behind `sequence`, from which the run goes on: that is of another one, and would be taken for
// the newest.
absl::Status OpenCheckpoints(const std::string& folder, int64_t sequence);

using CheckpointFiles = std::vector<std::pair<std::string, std::string>>;  // name, bytes

// Where the ranks of a run leave what the writer is to put into a checkpoint: a new folder within `folder`,
// which the next OpenCheckpoints takes away where this run does not.
absl::StatusOr<std::string> MakePartsFolder(const std::string& folder);

// Writes step<step> beside its place, forces it to the disk and renames it; then takes away older ones beyond
// the newest `keep`, and what earlier writers have left unfinished. One writer a folder.
absl::Status SaveCheckpoint(const std::string& folder, int64_t step, const CheckpointFiles& files, int keep);

}  // namespace psring
