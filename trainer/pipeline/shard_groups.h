// The groups of ranks that share and copy sharded state (--dp_shard): hybrid sharding, as in PyTorch's FSDP
// (Zhao et al. 2023, section 3.2.2).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// Of D replicas each `ranks` consecutive ones have one copy of the state, divided among them; D / ranks have
// the same shard.
struct ShardGroups {
  std::unique_ptr<ProcessGroup> shards;  // those of one copy
  std::unique_ptr<ProcessGroup> copies;  // those with this rank's shard

  // Every rank of `replicas`, which outlives the parts, calls it; their number is a multiple of `ranks` and
  // not equal to it. Errors name missing ranks.
  static absl::StatusOr<ShardGroups> Split(ProcessGroup& replicas, int ranks) {
    ShardGroups groups;
    const int copy = replicas.rank() / ranks, shard = replicas.rank() % ranks;
    PSRING_ASSIGN_OR_RETURN(groups.shards, replicas.Split(/*color=*/copy, /*key=*/shard));
    PSRING_ASSIGN_OR_RETURN(groups.copies, replicas.Split(/*color=*/shard, /*key=*/copy));
    return groups;
  }

  // From any thread.
  void Abort(const absl::Status& why) const {
    shards->Abort(why);
    copies->Abort(why);
  }
};

}  // namespace psring
