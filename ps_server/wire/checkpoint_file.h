// Checkpoints as files of a folder: server<s>-step<n>.checkpoint, a header in Protocol Buffers
// (proto/checkpoint.proto), the floats, and a hash of both. A file is written beside its place, forced to the
// disk and renamed, so that there is a whole one or none.
//
// The newest two are kept, and of several servers three. For servers take a checkpoint at the same steps, k
// apart, but one may be slower to write it: when it hands one over (parameter_server_checkpoint.cc) it has
// the one before on the disk, and no other server makes the next before that. So where one has kept nothing
// newer than step n, no other has yet written more than n + k and n + 2k, and the three are n, n + k and n +
// 2k.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps_server/server/checkpoint.h"

namespace psring {

// Makes the folder where it is missing. `server`: the shard's number. Load: a file that is damaged is passed
// over for the one before it; DataLoss where all are.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointFolder(const std::string& folder, int server,
                                                                      int servers = 1);

}  // namespace psring
