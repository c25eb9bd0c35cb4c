// Training checkpoints on disk: a folder of folders step<N>, each with a few files, each complete or absent.
// trainer/checkpoints defines what the files contain.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// The file with the training state; a folder without it is not a checkpoint.
inline constexpr char kPositionFile[] = "training.json";
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";

// State of one worker: worker<RANK>.safetensors.
std::string WorkerFile(int rank);

struct CheckpointPath {
  int64_t step = 0;
  // Counts the checkpoints of a training over all runs that continued it. Steps cannot order them, since a
  // run with more workers makes fewer. -1: unreadable.
  int64_t sequence = -1;
  std::string path;  // of its folder
};

// Newest first, by `sequence`. Empty if `folder` does not exist.
std::vector<CheckpointPath> ListCheckpoints(const std::string& folder);
// The folders step<N> with N above `step` that have lost kPositionFile, by a power cut for instance.
std::vector<std::string> IncompleteCheckpoints(const std::string& folder, int64_t step);

// Creates `folder` if it does not exist, and removes earlier runs' folders of MakePartsFolder.
// InvalidArgument if it is not writable, or if it contains a checkpoint later than `sequence`, from which the
// run continues: it belongs to another training and would be taken for the newest.
absl::Status OpenCheckpoints(const std::string& folder, int64_t sequence);

using CheckpointFiles = std::vector<std::pair<std::string, std::string>>;  // name, bytes

// Takes the files of a checkpoint, one after the other, each in pieces: all of them need not fit into memory.
class CheckpointSink {
 public:
  virtual ~CheckpointSink() = default;
  // Another name begins the next file.
  virtual absl::Status Append(const std::string& file, std::string_view piece) = 0;
};
using CheckpointContent = std::function<absl::Status(CheckpointSink& sink)>;

// Creates a new folder within `folder`, in which the ranks of a run store their parts of a checkpoint, and
// returns its name. If this run does not remove it, the next OpenCheckpoints does.
absl::StatusOr<std::string> MakePartsFolder(const std::string& folder);

// Whether MakePartsFolder gives such names. What another process names must be checked, so that it cannot
// choose where this one writes.
bool IsPartsFolder(const std::string& name);

// Writes `bytes` to the file `name` in `folder`; follows no symbolic link in place of either.
absl::Status WritePart(const std::string& folder, const std::string& name, const std::string& bytes);

// Writes `content` to a temporary folder, forces it to disk and renames it to step<step>; then removes all
// but the newest `keep` checkpoints, and unfinished ones of earlier writers. After an error of `content`
// nothing has changed. One writer per folder.
absl::Status SaveCheckpoint(const std::string& folder, int64_t step, const CheckpointContent& content,
                            int keep);

}  // namespace psring
