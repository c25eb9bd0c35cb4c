// How rank 0 comes by what a checkpoint holds of each worker alone: the step that it goes on with, and what
// rounding to 16 bits has left of its gradients.
//
// A rank leaves its part and goes on: the residual as a file in a folder beside the checkpoints, the rest,
// with the file's hash, in the rendezvous store. Rank 0 takes the parts that belong to its checkpoint, and
// writes them with it, so that one rename makes all of it count. A *moment* names what belongs together.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

struct WorkerPart {
  int64_t next = 0;      // the step that the worker goes on with
  std::string residual;  // a file, as EncodeResidual makes it; empty: there is none
};

class WorkerParts {
 public:
  // Every rank calls it; `folder` is rank 0's --checkpoint_dir. `blind`, on rank 0: the ranks that do not see
  // it, such as those of a machine with another disk; their residuals stay with them. `rendezvous` outlives
  // this.
  static absl::StatusOr<std::unique_ptr<WorkerParts>> Meet(Rendezvous& rendezvous, const std::string& folder,
                                                           std::vector<int>& blind);
  ~WorkerParts();  // on rank 0: what was left goes

  // Does not wait. What cannot be written rank 0 is told.
  absl::Status Leave(const std::string& moment, const WorkerPart& part);
  // On rank 0: waits until `rank` has left its part of that moment, and of step `next` where that is given.
  // DeadlineExceeded names the rank.
  absl::StatusOr<WorkerPart> Take(int rank, const std::string& moment, std::optional<int64_t> next,
                                  absl::Time deadline);

  // Rank 0 and `rank` wait for each other, as Rendezvous::Exchange does; each pair once at each `where`.
  absl::Status MeetRank(int rank, const std::string& where);

  // Rank 0 says that it stops before step `next`, and ranks that have failed look whether it did.
  absl::Status SayThatItStops(int64_t next);
  std::optional<int64_t> StopsBefore();

 private:
  WorkerParts(Rendezvous& rendezvous, std::string folder)
      : rendezvous_(rendezvous), folder_(std::move(folder)) {}
  std::string FileOf(int rank, const std::string& moment) const;

  Rendezvous& rendezvous_;
  const std::string folder_;
  bool sees_folder_ = true;
};

}  // namespace psring
