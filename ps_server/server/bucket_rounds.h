// The rounds of a job's buckets: who waits for whom (Consistency, Admission), the updates that follow from
// it, and the answers to them. A round is one update of one bucket.
//
// Thread-safe for different workers; calls for one worker hold its WorkerStream::receive. Locks are taken in
// this order: a worker's `receive`, admission_mutex_, a bucket's, a worker's `mutex`, Clipping's,
// Checkpointing's or RowRounds'. Replies are returned, not delivered: the caller delivers them when it holds
// no lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/measure/arrivals.h"
#include "ps_server/consistency/admission.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/server_job.h"
#include "ps_server/server/checkpoint.h"
#include "ps_server/server/clipping.h"
#include "ps_server/server/row_rounds.h"
#include "ps_server/server/worker_stream.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {

class BucketRounds {
 public:
  // Of a valid job. `workers`: one per worker of the job. `rows`: null: the job has no tables. `arrivals`:
  // see ServerOptions; may be null. All references outlive this.
  BucketRounds(const ServerJob& job, ParameterShard& shard, WorkerStream* workers,
               Checkpointing& checkpointing, RowRounds* rows, Arrivals* arrivals);

  // Whether a push that may begin is a repeat, which only needs its answer.
  absl::StatusOr<bool> MayBegin(int worker, const message::Gradient& chunk);
  // The worker's push of the bucket has arrived entirely, perhaps again. It counts unless the bucket was
  // reset meanwhile.
  absl::Status OnPush(int worker, int bucket, Lane& lane, Replies& replies);
  // Whether the worker's push of `step` waits for its answer.
  bool IsUnanswered(int worker, int bucket, int64_t step);
  // Another server went back: with bounded staleness, answers the workers that wait.
  absl::Status ReleaseWaiting(Lane& lane, Replies& replies);

  // Backup workers: what is decided about the gradient, by this server or by the first of several. Every
  // bucket gets a verdict before the next one is made, so that an update is made of the same workers in all
  // buckets.
  absl::StatusOr<Verdict> OnAnnounce(int worker, const message::Announcement& announcement, Lane& lane,
                                     Replies& replies);
  // The verdict's `complete` above 0: without this worker step `version` is complete.
  absl::StatusOr<Verdict> OnLeave(int worker, Lane& lane, Replies& replies);
  absl::Status OnLost(int worker, Lane& lane, Replies& replies);
  // A lost worker joins again, at one step in all buckets. When all buckets have reached that step, its
  // Welcome is in the replies of this call or of a later one; `again` is its `went_back`.
  absl::Status OnJoin(int worker, bool again, Replies& replies);
  // Clipping: the total of all servers, from any worker.
  absl::Status OnNormTotal(const message::NormTotal& total, Lane& lane, Replies& replies);

  // The workers that others wait for. `what`: "workers 1, 2 to push bucket 0 of step 1".
  struct Missing {
    std::vector<int> workers;
    std::string what;
  };
  Missing WaitsFor();

  // Every bucket's current weights; `slot` above 0: that slot of the optimizer.
  absl::StatusOr<std::vector<Reply>> Weights(int slot = 0);

  // Before anything is pushed: continue from a server's checkpoint; or from a checkpoint of the job's
  // workers.
  absl::Status Restore(const Checkpoint& checkpoint);
  void BeginAt(int64_t step, int64_t samples, int beyond);
  // The buckets' part of a checkpoint; nullopt if they are at different versions at the moment.
  absl::StatusOr<std::optional<Checkpoint>> Save();

 private:
  // A complete push, or a dropped gradient, that has not been answered yet.
  struct Pending {
    enum class State { kNone, kPushed, kApplied, kDropped, kRepeated, kJoining };
    State state = State::kNone;
    int64_t step = 0;
    int64_t samples = 0;
    int64_t staleness = 0;
    // kPushed: its worker was lost and has joined again since; it is kJoining when the push is applied.
    bool joins = false;
  };
  struct BucketState {
    Mutex mutex;
    std::unique_ptr<Consistency> consistency ABSL_GUARDED_BY(mutex);
    // Capabilities of `consistency`; null: it has none.
    BackupBucket* backup ABSL_GUARDED_BY(mutex) = nullptr;
    SummedPushes* summed ABSL_GUARDED_BY(mutex) = nullptr;
    BoundedWaits* bounded ABSL_GUARDED_BY(mutex) = nullptr;
    std::vector<Pending> pending ABSL_GUARDED_BY(mutex);           // by worker
    std::vector<int64_t> received_version ABSL_GUARDED_BY(mutex);  // by worker
  };
  // Answers that began before the update was complete.
  struct BegunAnswers {
    std::map<int, Reply> replies;    // by worker: what is still to be sent; in place, or in parts
    std::vector<std::byte*> places;  // valid as long as the replies
  };

  int bucket_count() const { return static_cast<int>(job_.buckets.size()); }
  void ForgetArrivals();
  absl::StatusOr<Verdict> VerdictOf(int worker, const message::Announcement& announcement)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(admission_mutex_);

  std::vector<std::unique_ptr<MutexLock>> LockAll();  // of the buckets
  // In every bucket: executes what `decide(bucket)` decides and, if `verdict` says so, completes its step.
  template <typename Decide>
  absl::Status ActOnAll(int worker, const Verdict& verdict, Lane& lane, Replies& replies,
                        const Decide& decide) ABSL_EXCLUSIVE_LOCKS_REQUIRED(admission_mutex_);
  // Executes a decision: an update, answers, or both.
  absl::Status Act(int bucket, const Consistency::Decision& decision, Lane& lane, Replies& replies);
  // Parts of its answers may be sent while it is computed.
  absl::Status MakeUpdate(int bucket, const Clipping::Update& update, const ParameterShard::Factors& factors,
                          Lane& lane, Replies& replies);
  // Clipping: once the last bucket of a step is added up, makes the updates, or asks all servers for the
  // total. Without a bucket's lock.
  absl::Status OnceReduced(Lane& lane, Replies& replies);
  absl::Status ApplyReduced(double sum_of_squares, Lane& lane, Replies& replies);
  // The worker that joins again has the bucket's version; after the last bucket it gets its Welcome.
  void ReadToJoin(int worker, Replies& replies);
  // Empties the bucket's sum: its workers send their gradients again.
  void ResetBucket(int bucket, Replies& replies);

  // bucket_answers.cc
  absl::StatusOr<BegunAnswers> BeginAnswers(int bucket, const std::vector<int>& readers);
  message::Answer AnswerMessage(int worker, int bucket) const;
  // Writes the weights to the worker's memory. Null: it has no place for them.
  absl::StatusOr<std::shared_ptr<ReplySink>> CopyInPlace(int worker, int bucket, Lane& lane);
  absl::Status Answer(int bucket, const std::vector<int>& readers, BegunAnswers begun, Lane& lane,
                      Replies& replies);

  const ServerJob job_;
  const WaitingRule rule_;
  ParameterShard& shard_;
  WorkerStream* const workers_;
  Checkpointing& checkpointing_;
  RowRounds* const rows_;
  Arrivals* const arrivals_;
  bool notes_arrivals_;
  std::unique_ptr<BucketState[]> buckets_;
  Clipping clipping_;
  Mutex admission_mutex_;
  std::optional<Admission> admission_ ABSL_GUARDED_BY(admission_mutex_);  // backup workers, first server
};

}  // namespace psring
