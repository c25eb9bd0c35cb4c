// What connects the ranks of a replica that is cut into stages (--pp), or whose matrices are divided (--tp).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ring_worker/groups/channel.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// Owned by the caller of RunWorker, as are the groups and channels.
struct Pipeline {
  int position = 0, size = 1;    // this rank's place in the pipeline, and how many places it has
  std::string program = "1f1b";  // --program: a program of program_rows.h
  std::vector<size_t> cuts;      // the layers before which the model is cut; empty: balanced
  // The ranks of this replica, by position, and then by share. `tensors`: those that divide the matrices of
  // these stages, by share; null: this rank has them whole. It may be `replica`.
  ProcessGroup *replica = nullptr, *tensors = nullptr;
  // A boundary between stages of different ranks of which this rank is one end. Boundary b lies between
  // stages b and b + 1; activations go forward, gradients back.
  struct Boundary {
    int boundary = 0;
    Channel* activations = nullptr;
    Channel* gradients = nullptr;
  };
  std::vector<Boundary> boundaries;
  // The ranks of the first and of the last stage, which may share tensors. Null: this rank has neither, or
  // both.
  ProcessGroup* tied = nullptr;
  int ranks = 1;  // of the job; Worker::world_size is the number of replicas

  // From any thread: every pending and later call and transfer fails with `why`. To be called before memory
  // is freed that a lane may still write.
  void Abort(const absl::Status& why) const {
    for (ProcessGroup* group : {replica, tensors, tied}) {
      if (group != nullptr) group->Abort(why);
    }
    for (const Boundary& boundary : boundaries) {
      boundary.activations->Abort(why);
      boundary.gradients->Abort(why);
    }
  }
};

}  // namespace psring
