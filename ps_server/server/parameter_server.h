// One job's parameter server, without the network. It is composed of
//
//   Membership      who is in the job, and who is waited for at a barrier
//   JobStart        whether a worker's job fits, and when and where the job begins
//   BucketReceiver  what arrives for buckets: initial weights and pushes
//   BucketRounds    who waits for whom in a bucket, its updates, and the answers to them (with Clipping)
//   RowRounds       pulls and updates of rows, if the job has tables
//   WorkerStream    each worker's stream and pushes
//   Checkpointing   when checkpoints are taken and written
//   Watchdog        the thread that notices losses and silence
//
// Threads: the watchdog; with checkpoints, a writer; if pushes are staged, one that notifies waiting workers
// when there is memory. Calls for different workers run concurrently; the call that completes an update
// computes it, with the Lane of its thread. A call waits only for locks, held for the time to add a chunk or
// update a bucket, and for a checkpoint that is due while the previous one is still being written.
//
// Locks are taken in this order: a worker's `receive`, mutex_ or those of BucketRounds, a worker's `mutex`,
// stats_mutex_.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/device/device.h"
#include "common/measure/arrivals.h"
#include "ps_server/server/bucket_receiver.h"
#include "ps_server/server/bucket_rounds.h"
#include "ps_server/server/checkpoint.h"
#include "ps_server/server/job_start.h"
#include "ps_server/server/membership.h"
#include "ps_server/server/row_rounds.h"
#include "ps_server/server/watchdog.h"
#include "ps_server/server/worker_stream.h"

namespace psring {

// What the others do when a worker is lost. kByMode: continue in asynchronous modes and bounded staleness,
// else stop.
enum class OnWorkerLoss { kByMode, kStop, kContinue };

struct ServerOptions {
  int workers = 1;
  int server = 0;  // which of how many: a job for another one is refused
  int servers = 1;
  std::vector<int> ranks = {};  // of the workers in the job; empty: their numbers. For messages
  absl::Duration timeout = absl::Seconds(60);  // how long workers may wait for others while nothing arrives
  OnWorkerLoss on_worker_loss = OnWorkerLoss::kByMode;
  absl::Duration worker_timeout = absl::ZeroDuration();  // for a worker with a broken stream to reconnect
  bool reject_nonfinite = true;
  // Asynchronous modes: memory for gradients and answers that are being transferred over gRPC, for all
  // workers together; at least one bucket.
  size_t staging_bytes = size_t{256} << 20;
  CheckpointStore* checkpoints = nullptr;  // null: none. Outlives the server
  int64_t checkpoint_every = 0;            // steps; 0: only at the start, at the end and when asked
  // One line for the user, such as the loss of a worker. Any thread.
  std::function<void(const std::string&)> on_note = [](const std::string&) {};
  // Before a worker's Leave is confirmed. Any thread, also several at once.
  std::function<void(const ServerStats&)> on_leave = [](const ServerStats&) {};
  // Asynchronous modes: records whose push each update was made of. Complete when the job is over.
  Arrivals* arrivals = nullptr;
};

class ParameterServer {
 public:
  ParameterServer(Device& device, const ServerOptions& options);
  ~ParameterServer();

  // Before any Join: continues from a checkpoint. Synchronous workers go back to its step. `epoch`: from a
  // Rewind; nullopt: this process was restarted.
  absl::Status Restore(const Checkpoint& checkpoint, std::optional<int64_t> epoch = std::nullopt);

  Device& device() const { return device_; }
  absl::StatusOr<Lane> NewLane() const;  // one for each thread that calls Receive

  // Admits a worker, whose messages go to `sink`. When the last one has joined, all get a Welcome. A job that
  // differs from that of the others, is impossible, too large or for another server, and a worker number that
  // is out of range or taken, are rejected without harm to the job. A lost worker is admitted again if the
  // others have continued. After an error `sink` is not used.
  absl::Status Join(const Joining& joining, std::shared_ptr<ReplySink> sink);

  // Handles a message of the worker that joined with `sink`; ignores it if that has changed. A worker that
  // violates the protocol is lost. kNotYet: do not read from the worker's connection until its sink gets
  // Proceed; then repeat the message.
  Receipt Receive(int worker, const ReplySink* sink, const message::ToServer& message,
                  const ReceivedPayload& payload, Lane& lane);

  // The worker's connection has ended. Unless it has left or reconnects in time, it is lost. `sink` is not
  // used any more.
  void Disconnected(int worker, const ReplySink* sink, const std::string& why);
  // The worker has violated the protocol: it is lost.
  void Expel(int worker, const ReplySink* sink, const absl::Status& why);
  void Abort(const absl::Status& why);  // fails the job; the first reason is kept. Any thread
  // Whether the job has not begun yet, because not all workers have joined.
  bool AwaitsWorkers() const { return !started_ && !start_.restored(); }
  // Abort while the job has not begun: a worker will not join, because of `why`.
  void AbortJoining(const absl::Status& why);

  // Requests a checkpoint and waits until it is written. False: not by `deadline`.
  bool CheckpointNow(MonotonicTime deadline);

  // Waits for the end: OK when all workers have left, or are lost and the others have left; the reason if the
  // job has failed; nullopt: neither by `deadline`.
  std::optional<absl::Status> WaitUntilOver(MonotonicTime deadline);

  // The workers that the job has ended without. After WaitUntilOver has returned OK.
  std::vector<int> lost_workers() const;

  // If WaitUntilOver returned Cancelled: a worker sent a Rewind to this step. Start another server in that
  // epoch, with a checkpoint that is not after the step.
  std::optional<message::Rewind> goes_back_to() const;

  ServerStats stats() const;
  uint64_t incarnation() const { return incarnation_; }

 private:
  // A message that is being handled: its sender, and what follows from it.
  struct Arrival {
    int worker;
    const ReceivedPayload& payload;
    Lane& lane;
    Replies replies = {};
    Receipt receipt = Receipt::kTaken;
    bool completes = false;  // a push
  };

  // parameter_server.cc
  absl::Status Dispatch(const message::ToServer& message, Arrival& from);
  // Specialized for each kind of message; those of rows have one definition.
  template <typename Kind>
  absl::Status On(const Kind& message, Arrival& from);
  void ReleaseBarriers();
  bool TakeCheckpoint(bool finished);  // false: the buckets are at different versions at the moment
  void Finish(Replies replies);        // takes a checkpoint if one is due, then delivers; without locks
  void Deliver(int worker, Reply reply) { workers_[worker].Deliver(std::move(reply), order_); }
  void Count(Replies& replies);  // the answers, once each

  // parameter_server_members.cc: joins.
  absl::Status PrepareLocked(const ServerJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Enter(const Joining& joining, std::shared_ptr<ReplySink> sink);
  absl::Status Resume(int worker, std::shared_ptr<ReplySink> sink);
  absl::Status Return(const Joining& joining, std::shared_ptr<ReplySink> sink);
  absl::Status StartOnceComplete();
  message::Welcome WelcomeMessage(int64_t step) const;
  // Sends Welcome, and before it the weights unless the worker has them or fetches them. `first_weights`:
  // those of the start; null: the current ones.
  absl::Status SendWelcome(int worker, int64_t step, bool again, bool went_back,
                           const std::vector<Reply>* first_weights = nullptr);
  void SendResets(int worker);

  // parameter_server_members.cc: losses. LoseOverdue, Lose and OnSilence run on the watchdog's thread.
  bool ContinuesWithout(int worker);
  void LoseOverdue();
  void Lose(int worker, const std::string& lost);
  void OnSilence();
  void CallQueuedWorkers();
  BucketRounds::Missing WaitsFor();

  Device& device_;
  const ServerOptions options_;
  const uint64_t incarnation_;
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Membership members_ ABSL_GUARDED_BY(mutex_);
  JobStart start_;  // changed under mutex_
  std::optional<message::Rewind> goes_back_to_ ABSL_GUARDED_BY(mutex_);

  // Written by worker 0's Join or by Restore; then read by its thread, and by all once started_ is true.
  ServerJob job_;
  WaitingRule rule_;
  AnswerOrder order_;
  std::unique_ptr<ParameterShard> shard_;
  std::unique_ptr<WorkerStream[]> workers_;
  std::unique_ptr<RowRounds> rows_;  // null: the job has no tables
  std::unique_ptr<BucketRounds> rounds_;
  std::unique_ptr<BucketReceiver> receiver_;
  bool was_finished_ = false;          // at the checkpoint the workers only had to leave; set before any Join
  std::atomic<bool> finished_{false};  // a checkpoint after the last step of all workers is being written

  std::atomic<bool> started_{false};  // all have joined, and the weights are complete
  std::atomic<bool> failed_{false};
  Checkpointing checkpointing_;
  mutable Mutex stats_mutex_;
  ServerStats stats_ ABSL_GUARDED_BY(stats_mutex_);
  std::thread queue_thread_;  // if pushes are staged: CallQueuedWorkers
  Watchdog watchdog_;         // last: its thread uses the above
};

}  // namespace psring
