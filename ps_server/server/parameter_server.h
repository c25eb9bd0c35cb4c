// One job's parameter server, minus the wire: who has joined, who has pushed what, who waits, and what they
// are answered. The gRPC service and the direct client bring the bytes in and carry the answers out.
//
// Threads: there are none in here but a watchdog, with checkpoints a writer, and where pushes are staged one
// that calls those in line for memory. The calls of different workers come at once, and the call that
// completes an update computes it, with the Lane of its thread. A call waits for nothing but locks that are
// held for as long as a chunk is added or a bucket updated, and for a checkpoint that is due while the one
// before is still being written.
//
// Locks are taken in this order: a worker's `receive`, mutex_ or admission_mutex_, a bucket's, a worker's
// `mutex`, stats_mutex_.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/device/device.h"
#include "common/measure/arrivals.h"
#include "common/measure/trace.h"
#include "ps_server/consistency/admission.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/server_job.h"
#include "ps_server/server/checkpoint.h"
#include "ps_server/server/checkpoint_writer.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {

class ReplySink;

// A message and its entire payload; the transport cuts it into chunks. `weights` stay readable while the
// reply exists.
struct Reply {
  message::ToWorker message;
  Snapshot weights = {};
  bool in_place = false;  // the weights are at the sink's PlaceOf already, and not in `weights`
  bool repeated = false;  // the first answer was lost, and has been counted
  // A part of it, in bytes of the weights: from a chunk's beginning to another's, or to the end. Parts come
  // in ascending order, and only to who TakesParts.
  size_t from = 0, upto = SIZE_MAX;
  // The server's own: who has got what is before `from`, or in whose memory the weights stand in place.
  std::shared_ptr<ReplySink> begun_on = {};
};

// One worker's ear. Called from any thread, also while other calls to it run; must not block or call back.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void Deliver(Reply reply) = 0;
  // What Receive did not take may be brought again. Perhaps before that call has returned.
  virtual void Proceed() = 0;
  // Whether a reply may come in parts, the first of them while the others are still being made.
  virtual bool TakesParts() const { return false; }
  // What keeps the memory readable in which gradients stand that are handed to Receive as shared, and stay
  // until their exchange is answered; null: they have to be read at once.
  virtual std::shared_ptr<const void> Memory() const { return nullptr; }
  // Where the weights that answer the exchange in flight of `bucket` may be written at once, `bytes` of them;
  // null: nowhere. Called before Deliver.
  struct Place {
    std::byte* data = nullptr;
    bool on_gpu = false;  // memory of a GPU that the server's reaches
  };
  virtual Place PlaceOf(int bucket, size_t bytes) {
    (void)bucket, (void)bytes;
    return {};
  }
  // This worker has no part in the job any more, or the job has failed; nothing is delivered afterwards. At
  // most once.
  virtual void Abort(const absl::Status& why) = 0;
};

// What becomes of the others when a worker is lost. kByMode: asynchronous ones and those of bounded staleness
// go on, synchronous ones stop.
enum class OnWorkerLoss { kByMode, kStop, kContinue };

struct ServerOptions {
  int workers = 1;
  int server = 0;  // which of how many: a job for another one is refused
  int servers = 1;
  absl::Duration timeout =
      absl::Seconds(60);  // how long some may wait for others while nothing at all arrives
  OnWorkerLoss on_worker_loss = OnWorkerLoss::kByMode;
  absl::Duration worker_timeout = absl::ZeroDuration();  // a worker whose stream has broken may come back
  bool reject_nonfinite = true;
  // Asynchronous modes: the window of memory for gradients and answers on their way over gRPC, whatever the
  // number of workers; at least one bucket.
  size_t staging_bytes = size_t{256} << 20;
  CheckpointStore* checkpoints = nullptr;  // null: none. Outlives the server
  int64_t checkpoint_every = 0;            // steps; 0: at the start, at the end and when asked only
  // What people should know, in one line: a worker that was lost. From any thread.
  std::function<void(const std::string&)> on_note = [](const std::string&) {};
  // Asynchronous modes: where to note whose push each update was made of. Complete once the job is over.
  Arrivals* arrivals = nullptr;
};

// A message's payload. `stays`: it is in aligned memory of the worker, which does not change until the
// exchange is answered; then it may be an entire bucket at once, and must be if it is `on_gpu`.
struct ReceivedPayload {
  Pieces pieces = {};
  bool stays = false;
  bool on_gpu = false;
};

// Whether a message was taken. kNotYet: there is no memory for it now, and nothing of it was taken.
enum class Receipt { kTaken, kNotYet };

// How a worker introduces itself.
struct Joining {
  int worker = 0;
  ServerJob job;
  uint64_t session = 0;  // of one process's client; 0: it never comes back
  bool again = false;    // it has been let in before, and its stream has broken since
  int64_t epoch = 0;     // the newest of this server's that it has heard of (common_step.h)
};

class ParameterServer {
 public:
  ParameterServer(Device& device, const ServerOptions& options);
  ~ParameterServer();

  // Before any Join: goes on from what a server has left behind. Synchronous workers go back to its step.
  // `epoch`: that it was told to begin; nothing: the one before has died.
  absl::Status Restore(const Checkpoint& checkpoint, std::optional<int64_t> epoch = std::nullopt);

  Device& device() const { return device_; }

  // One a thread that calls Receive.
  absl::StatusOr<Lane> NewLane() const;

  // Admits a worker. `sink` hears of everything from here on; the last to join makes all hear kJoin. Worker
  // 0's job counts: one that differs from it fails the job. A job that is impossible, too large for this
  // server, or for another one, and a worker number that is out of range or taken, are refused without harm
  // to the job. A worker that was lost is let in again where the others have gone on. After an error `sink`
  // hears nothing.
  absl::Status Join(const Joining& joining, std::shared_ptr<ReplySink> sink);

  // A message of the worker that joined with `sink`; of any other it is ignored. Any kind but kJoin. What
  // does not belong costs the worker its place, and where the job stops for that, all hear of it. A gradient
  // whose header says `shared` stands, aligned, in memory that stays as it is until the exchange is answered,
  // and may be a whole bucket at once; it is one where it stands `on_gpu`. kNotYet: the worker's connection
  // is not to be read from before its sink hears Proceed; then the same message comes again, and those behind
  // it.
  Receipt Receive(int worker, const ReplySink* sink, const message::ToServer& message,
                  const ReceivedPayload& payload, Lane& lane);

  // The worker's connection is gone. Unless it has left, or comes back in time, it is lost. `sink` hears
  // nothing afterwards.
  void Disconnected(int worker, const ReplySink* sink, const std::string& why);

  // What came from the worker on `sink` is no message: as if Receive had found out.
  void TurnAway(int worker, const ReplySink* sink, const absl::Status& why);

  // Fails the job; the first reason counts. From any thread.
  void Abort(const absl::Status& why);

  // Has a checkpoint written as soon as there can be one. False: not by `deadline`.
  bool CheckpointNow(absl::Time deadline);

  // Waits for the end: OK once all workers have left, or are lost and the others have left; the reason once
  // the job has failed. Nothing where neither has happened by `deadline`.
  std::optional<absl::Status> WaitUntilOver(absl::Time deadline);

  // Where WaitUntilOver says Cancelled: a worker has said that the job goes back to this step. Another server
  // is to take the place of this one, in that epoch, with a checkpoint that is not beyond the step.
  struct Rewind {
    int64_t step = 0;
    int64_t epoch = 0;
  };
  std::optional<Rewind> goes_back_to() const;

  ServerStats stats() const;
  uint64_t incarnation() const { return incarnation_; }

 private:
  enum class Presence { kAbsent, kJoined, kLeft, kLost };

  // A worker's push of one bucket, as far as it has arrived.
  struct Push {
    int64_t step = -1;
    uint64_t resets = 0;
    int64_t samples = 0;
    uint64_t high_water = 0;  // bytes below it are added or staged
    bool whole = false;
    bool answered_again = false;  // once on each stream
  };
  struct Worker {
    Mutex receive;  // one message of a worker at a time, and no loss of it meanwhile
    std::vector<Push> pushes ABSL_GUARDED_BY(receive);  // by bucket
    // Worker 0: initial weights, by bucket.
    std::vector<uint64_t> weights_bytes ABSL_GUARDED_BY(receive);
    std::vector<bool> weights_whole ABSL_GUARDED_BY(receive);
    size_t weights_left ABSL_GUARDED_BY(receive) = 0;  // worker 0: buckets of initial weights still to come
    bool left ABSL_GUARDED_BY(receive) = false;

    Mutex mutex;
    std::shared_ptr<ReplySink> sink ABSL_GUARDED_BY(mutex);
    int64_t pushes_complete ABSL_GUARDED_BY(mutex) = 0;  // skipped steps count as pushed
    std::vector<Reply> held ABSL_GUARDED_BY(mutex);      // serial: until the whole gradient has arrived
    size_t buckets_to_read ABSL_GUARDED_BY(mutex) = 0;   // joining: before it may begin
    int64_t joins_at ABSL_GUARDED_BY(mutex) = 0;
    bool joins_again ABSL_GUARDED_BY(mutex) = false;
  };
  // A complete push, or a dropped gradient, that has not been answered yet.
  struct Pending {
    enum class State { kNone, kPushed, kApplied, kDropped, kRepeated, kJoining };
    State state = State::kNone;
    int64_t step = 0;
    int64_t samples = 0;
    int64_t staleness = 0;
    // kPushed, before its worker was lost; that has come back since, and is kJoining once the push is
    // applied.
    bool joins = false;
  };
  // Clipping: an update that is decided, and waits for the norm of the whole gradient.
  struct Reduced {
    std::vector<int> workers;
    int64_t samples = 0;
    double sum_of_squares = 0;
    std::vector<int> may_read;  // once it is made
  };
  struct BucketState {
    Mutex mutex;
    std::unique_ptr<Consistency> consistency ABSL_GUARDED_BY(mutex);
    BackupBucket* backup ABSL_GUARDED_BY(mutex) =
        nullptr;  // capabilities of `consistency`; null: it has none
    SummedPushes* summed ABSL_GUARDED_BY(mutex) = nullptr;
    std::vector<Pending> pending ABSL_GUARDED_BY(mutex);           // by worker
    std::vector<int64_t> received_version ABSL_GUARDED_BY(mutex);  // by worker
    std::vector<bool> may_skip ABSL_GUARDED_BY(mutex);      // by worker: its first push after a restore
    std::optional<Reduced> reduced ABSL_GUARDED_BY(mutex);  // clipping
  };
  // Of a worker, while it is in the job.
  struct Attendance {
    Presence presence = Presence::kAbsent;
    uint64_t session = 0;
    bool again = false;
    int64_t epoch = 0;
    int64_t gone_ns = 0;      // since then its stream is broken; 0: it is not
    int64_t patience_ns = 0;  // for so long
    std::string why;          // it is gone
    int barrier = -1;         // at which it waits
  };
  static constexpr int kBarriers = 3;

  // What a decision on a bucket comes to: an update, replies. The caller delivers these once it holds no
  // lock.
  using Replies = std::vector<std::pair<int, Reply>>;

  // parameter_server_join.cc
  // Whether the job is one for this server, whatever the other workers' are.
  absl::Status CheckJobLocked(int worker, const ServerJob& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CompareJobLocked(int worker, const ServerJob& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PrepareLocked(const ServerJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartOnceComplete();
  absl::Status Resume(int worker, std::shared_ptr<ReplySink> sink);
  absl::Status ComeBack(const Joining& joining, std::shared_ptr<ReplySink> sink);
  absl::Status TakeIn(int worker, bool again, Replies& replies);
  absl::Status Enter(const Joining& joining, std::shared_ptr<ReplySink> sink);
  // Tells a worker that it may begin, with the weights unless it has them or fetches them.
  // `first_weights`: those of the start; null: as they are now.
  absl::Status Welcome(int worker, int64_t step, bool again, bool went_back,
                       const std::vector<Reply>* first_weights = nullptr);
  message::Welcome WelcomeMessage(int64_t step) const;
  void TellResets(int worker);
  // Every bucket as it is now, for Join and Fetch; `slot` above 0: of that slot of the optimizer.
  absl::StatusOr<std::vector<Reply>> AllWeights(int slot = 0);
  // The job goes on from a checkpoint of its workers.
  void BeginAtLocked(const ServerJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // parameter_server.cc
  static absl::Status Annotate(const absl::Status& status, int worker, int bucket);
  absl::StatusOr<Receipt> Dispatch(int worker, const message::ToServer& message,
                                   const ReceivedPayload& payload, Lane& lane);
  std::shared_ptr<ReplySink> SinkOf(int worker) const;
  // An update of the bucket, and the answers to it. They begin to leave while it is made.
  struct Update {
    std::vector<int> pushed;
    int64_t samples = 0;
    ParameterShard::Factors factors = {};
  };
  absl::Status MakeUpdate(int bucket, const Update& update, const std::vector<int>& readers, Lane& lane,
                          Replies& replies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  // What has been done of the answers by the time the update is made.
  struct Begun {
    // By worker: what is still to come; in place, or in parts.
    std::map<int, Reply> replies;
    std::vector<std::byte*> places;  // there as long as the replies
  };
  absl::StatusOr<Begun> BeginAnswers(int bucket, const std::vector<int>& readers, Lane& lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  message::Answer AnswerMessage(int worker, int bucket) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  // Straight into the worker's memory, where it has a place for them: to whom. Null: it has none.
  absl::StatusOr<std::shared_ptr<ReplySink>> CopyInPlace(int worker, int bucket, Lane& lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  absl::Status Act(int bucket, const Consistency::Decision& decision, Lane& lane, Replies& replies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  // Answers `readers` with the bucket's weights.
  absl::Status Answer(int bucket, const std::vector<int>& readers, Begun begun, Lane& lane, Replies& replies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  absl::Status OnFetch(int worker, const message::Fetch& fetch);
  void Deliver(int worker, Reply reply);
  // After a decision, with no lock held: a checkpoint where one is due, then the replies.
  void Finish(Replies replies);
  void Count(int worker, const message::Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stats_mutex_);

  // parameter_server_clipping.cc
  // Once the last bucket of a step has been added up, makes the updates, or asks for the total of all servers
  // first. After every Act, without a bucket's lock.
  absl::Status OnceAllAreReduced(Lane& lane, Replies& replies);
  absl::Status ApplyReduced(double sum_of_squares, Lane& lane, Replies& replies);
  absl::Status OnNormTotal(const message::NormTotal& total, Lane& lane);

  // parameter_server_push.cc
  absl::Status OnWeights(int worker, const message::InitialWeights& chunk, Pieces payload);
  absl::Status OnSlot(int worker, const message::InitialWeights& chunk, Pieces payload);
  absl::StatusOr<Receipt> OnGradient(int worker, const message::Gradient& chunk,
                                     const ReceivedPayload& payload, Lane& lane);
  absl::StatusOr<Receipt> BeginPush(int worker, const message::Gradient& chunk, const PushManner& manner);
  absl::Status MayBegin(int worker, const message::Gradient& chunk, bool& repeated);
  absl::Status OnPushComplete(int worker, int bucket, Lane& lane);
  absl::StatusOr<Receipt> OnRepeat(int worker, int bucket, bool in_place, Lane& lane);
  absl::Status CheckBucket(int worker, int bucket) const;
  static absl::Status CheckChunk(uint64_t offset, uint64_t next_offset, size_t bytes, size_t bucket_bytes);

  // parameter_server_waiting.cc
  absl::Status OnAnnounce(int worker, const message::Announcement& announcement, Lane& lane);
  // Backup workers: what is decided of the gradient; by this server, or by the first of several.
  absl::StatusOr<Verdict> VerdictOf(int worker, const message::Announcement& announcement)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(admission_mutex_);
  absl::Status OnLeave(int worker, Lane& lane);
  void NoteDropped(int worker, int64_t next_step);
  absl::Status OnBarrier(int worker, int64_t number);
  // Lets those go who wait at a barrier where nobody is missing any more.
  void ReleaseBarriers();

  // parameter_server_lost.cc
  bool GoesOnWithout(int worker);
  // On the watchdog's thread: the others go on without it, or the job fails.
  void Lose(int worker, const std::string& why, Lane& lane);
  absl::Status TakeOut(int worker, Lane& lane, Replies& replies);
  void ResetBucket(int bucket, Replies& replies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  // What the worker has staged in part goes, and it stands in line no more: all of it comes again, or
  // nothing.
  void DropStaged(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(workers_[worker].receive);

  // parameter_server_checkpoint.cc
  void NoteVersion(int bucket, int64_t version);
  void CheckpointIfDue();
  // False: the buckets are at different versions just now.
  bool TakeCheckpoint(bool finished);

  absl::Status OnRewind(int worker, const message::Rewind& rewind);

  // parameter_server_watch.cc
  void Watch();
  // Tells those in line for memory whose turn has come.
  void CallThoseInLine();
  // Whom the others wait for; nobody where nobody waits.
  struct Missing {
    std::vector<int> workers;
    std::string what;  // "workers 1, 2 to push bucket 0 of step 1"
  };
  Missing WaitedFor();
  // Who takes up the memory that others stand in line for.
  Missing HoldsMemory();

  Device& device_;
  const ServerOptions options_;
  const uint64_t incarnation_;

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<Attendance> attendance_ ABSL_GUARDED_BY(mutex_);
  std::vector<ServerJob> jobs_ ABSL_GUARDED_BY(mutex_);  // as each worker told it
  bool weights_arrived_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool passed_[kBarriers] ABSL_GUARDED_BY(mutex_) = {};
  bool poked_ ABSL_GUARDED_BY(mutex_) = false;  // the watchdog has something to do
  std::optional<Rewind> goes_back_to_ ABSL_GUARDED_BY(mutex_);

  // Made in worker 0's Join or in Restore; from then on worker 0's thread may read it, and everybody once
  // started_ is true.
  ServerJob job_;
  WaitingRule rule_;
  std::unique_ptr<ParameterShard> shard_;
  bool notes_arrivals_ = false;
  std::unique_ptr<BucketState[]> buckets_;
  Mutex admission_mutex_;  // before any bucket's
  // Backup workers, at the first server.
  std::optional<Admission> admission_ ABSL_GUARDED_BY(admission_mutex_);
  std::unique_ptr<Worker[]> workers_;
  bool restored_ = false;  // before any Join
  std::atomic<int64_t> epoch_{0};
  bool epoch_is_told_ = false;             // before any Join; else it follows from what the workers know
  std::vector<int64_t> first_step_;        // by worker: a checkpoint's, or 0
  bool was_finished_ = false;              // the checkpoint's workers had nothing left to do but to leave
  std::atomic<size_t> reduced_{0};         // clipping: buckets whose gradient has been added up
  std::atomic<int64_t> awaited_norm_{-1};  // clipping: of which step the total is asked for

  std::atomic<bool> started_{false};  // all have joined, and the weights are in place
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> last_arrival_ns_;

  std::atomic<bool> checkpoint_due_{false};
  std::atomic<bool> checkpoint_asked_{false};
  Mutex checkpoint_mutex_;
  int64_t version_counted_ ABSL_GUARDED_BY(checkpoint_mutex_) = -1;
  size_t buckets_counted_ ABSL_GUARDED_BY(checkpoint_mutex_) = 0;  // that have reached it
  std::unique_ptr<CheckpointWriter> writer_;

  mutable Mutex stats_mutex_;
  ServerStats stats_ ABSL_GUARDED_BY(stats_mutex_);

  std::thread watchdog_;
  std::thread usher_;  // where pushes are staged
};

}  // namespace psring
