// Checkpoints as files server<s>-step<n>.checkpoint: a header in Protocol Buffers (proto/checkpoint.proto),
// the floats, and a hash of both. A file is written under a temporary name, flushed to disk and renamed, so
// it is complete or does not exist.
//
// The newest two are kept; with several servers three. Servers take checkpoints at the same steps, k apart. A
// server has written one before it hands over the next (checkpointing.h), and no other server makes the step
// after that before. So if the newest of one is of step n, the others have none after n + 2k, and keep n.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps_server/server/checkpoint.h"

namespace psring {

// Creates the folder if it is missing. Load skips damaged files; DataLoss if all are.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointFolder(const std::string& folder, int server,
                                                                      int servers = 1);

}  // namespace psring
