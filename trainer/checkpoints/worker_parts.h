// Collects on rank 0 the workers' own parts of a checkpoint: each worker's next step and residual.
//
// A rank leaves its part and continues: the residual as a file in a folder beside the checkpoints, the rest,
// with the file's hash, in the rendezvous store. Rank 0 takes the parts that belong to its checkpoint and
// writes all together, so that one rename commits everything. A *moment* is the name that parts of one
// checkpoint share.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

struct WorkerPart {
  int64_t next = 0;      // the worker's next step
  std::string residual;  // a file from EncodeResidual; empty: none
};

class WorkerParts {
 public:
  // Every rank calls it with its own --checkpoint_dir, `folder`; rank 0 makes the folder of parts there.
  // `blind`, on rank 0: the ranks that cannot see it, such as those on a machine with another disk; their
  // residuals are not saved. `rendezvous` outlives this.
  static absl::StatusOr<std::unique_ptr<WorkerParts>> Meet(Rendezvous& rendezvous, const std::string& folder,
                                                           std::vector<int>& blind);
  ~WorkerParts();  // on rank 0: deletes the folder of parts

  // Does not wait. If the file cannot be written, the part in the store has no residual.
  absl::Status Leave(const std::string& moment, const WorkerPart& part);
  // On rank 0: waits until `rank` has left its part of that moment, with step `next` if given.
  // DeadlineExceeded names the rank.
  absl::StatusOr<WorkerPart> Take(int rank, const std::string& moment, std::optional<int64_t> next,
                                  MonotonicTime deadline);

  // Rank 0 and `rank` wait for each other, as in Rendezvous::Exchange; once per pair and `where`. After rank
  // 0 has waited in vain, it does not wait again before `rank`, which may have been stopped, continues.
  absl::Status MeetRank(int rank, const std::string& where);

  // Rank 0 announces that it stops before step `next`; ranks that have failed read the announcement.
  absl::Status SayThatItStops(int64_t next);
  std::optional<int64_t> StopsBefore();

 private:
  WorkerParts(Rendezvous& rendezvous, std::string folder)
      : rendezvous_(rendezvous), folder_(std::move(folder)) {}
  std::string LastMeetingOf(int rank);

  Rendezvous& rendezvous_;
  const std::string folder_;
  bool sees_folder_ = true;
  // On rank 0: ranks that did not come to a meeting, and the last one to which they had come.
  std::map<int, std::string> missed_;
};

}  // namespace psring
