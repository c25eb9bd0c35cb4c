// Checkpoints as files server<s>-step<n>.checkpoint: a header in Protocol Buffers (proto/checkpoint.proto),
// the floats, and a hash of both. A file is written under a temporary name, flushed to disk and renamed, so
// it is complete or does not exist.
//
// The newest two are kept; with several servers three. Servers take checkpoints at the same steps, k apart. A
// server replies at a checkpoint only when the previous one is on disk (server/checkpoint.h), and until then
// no worker continues. So if the newest one of a server is of step n, no server has one after n + 2k, and all
// still have n.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps_server/server/checkpoint.h"

namespace psring {

// Creates the folder if it is missing. Load skips damaged files, and returns DataLoss if all are damaged.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointFolder(const std::string& folder, int server,
                                                                      int servers = 1);

}  // namespace psring
