// The tables of a job on one server: pulls, pushes and updates of rows.
//
// Synchronous: a step's update is made when every worker that is in the job has pushed, from their gradients
// added in the order of workers; pulls of later steps wait for it. With backup workers the update is made
// from the workers whose gradients are in the step's update of the buckets, and a pull of an earlier step
// gets the newest rows. Otherwise each message of a push is an update as it arrives.
//
// If the job continues from a checkpoint, worker 0 sends all rows first; all pulls wait for the last of them.
//
// Thread-safe. Replies are returned, not delivered.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/tables/row_storage.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/row_messages.h"
#include "ps_server/protocol/server_job.h"
#include "ps_server/server/worker_stream.h"

namespace psring {

class RowRounds {
 public:
  // Null: the job has no tables. Allocates them, and initializes them unless worker 0 sends them.
  static absl::StatusOr<std::unique_ptr<RowRounds>> Create(const ServerJob& job, bool reject_nonfinite);

  absl::Status On(int worker, const message::PullRows& pull, Pieces payload, Replies& replies);
  absl::Status On(int worker, const message::PushRows& push, Pieces payload, Replies& replies);
  absl::Status On(int worker, const message::InitialRows& initial, Pieces payload, Replies& replies);
  // Backup workers: the next update of the buckets is made, from these workers' gradients. They push their
  // rows when they have its answer. FailedPrecondition: rows of the update before are missing.
  absl::Status OnUpdate(const std::vector<int>& workers, Replies& replies);
  // The worker has left or is lost: nobody waits for its pushes any more.
  void OnGone(int worker, Replies& replies);

  // Whether rows that worker 0 is to send are missing.
  bool AwaitsInitialRows() const;

  // The workers whose push of the current step, or whose initial rows, others wait for.
  std::vector<int> WaitsFor() const;

 private:
  // A worker's push that is not in an update yet.
  struct Pushed {
    bool is_gone = false;
    bool is_complete = false;
    int64_t samples = 0;
    std::vector<ReceivedRows> of_tables;
    int64_t pulled_version = 0;      // of the newest pull
    std::vector<int32_t> last_rows;  // by table: of the push in progress; -1: none
    size_t waiting = 0;              // pulls

    void Forget();  // the gradients
  };
  struct WaitingPull {
    int worker;
    message::PullRows pull;
    std::vector<int32_t> rows;
  };

  RowRounds(const ServerJob& job, const WaitingRule& rule, bool reject_nonfinite,
            std::unique_ptr<Device> host, RowStorage storage);

  absl::Status CheckTable(int worker, int table) const;
  int RowsOf(int table) const;
  // Its push is part of the current step's update.
  bool TakesPartLocked(int worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Reply AnswerLocked(const message::PullRows& pull, const std::vector<int32_t>& rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateIfCompleteLocked(Replies& replies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerWaitingLocked(Replies& replies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OptimizerStep StepLocked(int64_t samples, int64_t staleness) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ServerJob job_;
  const bool each_alone_, has_backups_, reject_nonfinite_;
  const int64_t slots_;  // of the optimizer
  const std::unique_ptr<Device> host_;
  mutable Mutex mutex_;
  RowStorage storage_ ABSL_GUARDED_BY(mutex_);
  // Of each array and table, [array][table]: the next row that worker 0 is to send; and how many of them
  // still lack rows.
  std::vector<int> next_initial_ ABSL_GUARDED_BY(mutex_);
  size_t incomplete_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // updates so far
  int64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;  // in them
  std::vector<Pushed> workers_ ABSL_GUARDED_BY(mutex_);
  // Backup workers: those of the current step's update, once they are known.
  std::optional<std::vector<int>> updaters_ ABSL_GUARDED_BY(mutex_);
  std::deque<WaitingPull> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> rows_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> sums_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
