// Checkpoints as files of a folder: server<s>-step<n>.checkpoint, a header in Protocol Buffers
// (proto/checkpoint.proto), the floats, and a hash of both. A file is written beside its place, forced to the
// disk and renamed, so that there is a whole one or none; the newest two are kept.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps_server/checkpoint.h"

namespace psring {

// Makes the folder where it is missing. `server`: the shard's number. Load: a file that is damaged is passed
// over for the one before it; DataLoss where all are.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointFolder(const std::string& folder, int server);

}  // namespace psring
