// One job's parameter server, minus the wire: who has joined, who has pushed what, who waits, and what they
// are answered. The gRPC service and the direct client bring the bytes in and carry the answers out.
//
// Threads: there are none in here but a watchdog. The calls of one worker come from one thread at a time;
// those of different workers come at once, and the call that completes an update computes it, with the Lane
// of its thread. A call waits for nothing but locks that are held for as long as a chunk is added or a bucket
// updated.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/arrivals.h"
#include "common/device.h"
#include "common/mutex.h"
#include "common/trace.h"
#include "ps_server/admission.h"
#include "ps_server/consistency.h"
#include "ps_server/messages.h"
#include "ps_server/parameter_shard.h"
#include "ps_server/server_job.h"

namespace psring {

// Header and whole payload of an answer; the carrier cuts it into chunks. `weights` stays readable while it
// is held.
struct Reply {
  ChunkHeader header;
  Snapshot weights;
  bool in_place = false;  // the weights stand at the sink's PlaceOf already, and not here
};

// One worker's ear. Called from any thread, also while other calls to it run; must not block or call back.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void Deliver(Reply reply) = 0;
  // Where the weights that answer the exchange in flight of `bucket` may be written at once, `bytes` of them;
  // null: nowhere. Called before Deliver, and only where they would have to be copied anyway.
  virtual std::byte* PlaceOf(int bucket, size_t bytes) {
    (void)bucket, (void)bytes;
    return nullptr;
  }
  // The job has failed; nothing is delivered afterwards. At most once.
  virtual void Abort(const absl::Status& why) = 0;
};

struct ServerOptions {
  int workers = 1;
  int server = 0;  // which of how many: a job for another one is refused
  int servers = 1;
  absl::Duration timeout =
      absl::Seconds(60);  // how long some may wait for others while nothing at all arrives
  // Asynchronous modes: where to note whose push each update was made of. Complete once the job is over.
  Arrivals* arrivals = nullptr;
};

// What happened so far. Payload is that of exchanges: gradients in, weights out; the weights of Join and
// Fetch are not in it.
struct ServerStats {
  int64_t pushes = 0;  // a worker's gradient of a bucket
  Traffic payload;
  std::vector<int64_t> staleness_histogram;   // index: staleness
  std::vector<int64_t> worker_pushes;         // by worker
  std::vector<int64_t> worker_staleness_sum;  // by worker
  int64_t dropped_gradients = 0;              // backup workers: whole gradients that came too late
  std::vector<int64_t> worker_dropped;        // by worker
};

class ParameterServer {
 public:
  ParameterServer(Device& device, const ServerOptions& options);
  ~ParameterServer();

  // One a thread that calls Receive.
  absl::StatusOr<Lane> NewLane() const;

  // Admits a worker. `sink` hears of everything from here on; the last to join makes all hear kJoin. Worker
  // 0's job counts: one that differs from it fails the job. A number that is out of range or taken is refused
  // without harm to the job. After an error `sink` hears nothing.
  absl::Status Join(int worker, const ServerJob& job, std::shared_ptr<ReplySink> sink);

  // A message of a worker that has joined; any kind but kJoin. What does not belong fails the job, and all
  // hear of it. A gradient whose header says `shared` stands, aligned, in memory that stays as it is until
  // the exchange is answered, and may be a whole bucket at once.
  void Receive(int worker, const ChunkHeader& header, Pieces payload, Lane& lane);

  // The worker's connection is gone. Unless it has left, that fails the job. It hears nothing afterwards.
  void Disconnected(int worker, const std::string& why);

  // Fails the job; the first reason counts. From any thread.
  void Abort(const absl::Status& why);

  // Waits for the end: OK once all workers have left, the reason once the job has failed. Nothing where
  // neither has happened by `deadline`.
  std::optional<absl::Status> WaitUntilOver(absl::Time deadline);

  ServerStats stats() const;

 private:
  enum class Presence { kAbsent, kJoined, kLeft };

  // A worker's push of one bucket, as far as it has arrived.
  struct Push {
    bool begun = false;
    int64_t step = 0;
    int64_t samples = 0;
    uint64_t next_offset = 0;
  };
  struct Worker {
    // Touched by the worker's own thread alone.
    std::vector<Push> pushes;             // by bucket
    std::vector<uint64_t> weights_bytes;  // worker 0: initial weights that have arrived, by bucket
    size_t weights_left = 0;              // worker 0: buckets of initial weights still to arrive
    bool left = false;

    Mutex mutex;
    std::shared_ptr<ReplySink> sink ABSL_GUARDED_BY(mutex);
    int64_t pushes_complete ABSL_GUARDED_BY(mutex) = 0;  // skipped steps count as pushed
    std::vector<Reply> held ABSL_GUARDED_BY(mutex);      // serial: until the whole gradient has arrived
  };
  // A complete push, or a dropped gradient, that has not been answered yet.
  struct Pending {
    enum class State { kNone, kPushed, kApplied, kDropped };
    State state = State::kNone;
    int64_t step = 0;
    int64_t samples = 0;
    int64_t staleness = 0;
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
    std::vector<Pending> pending ABSL_GUARDED_BY(mutex);           // by worker
    std::vector<int64_t> received_version ABSL_GUARDED_BY(mutex);  // by worker
    std::optional<Reduced> reduced ABSL_GUARDED_BY(mutex);         // clipping
  };

  absl::Status CheckJobLocked(int worker, const ServerJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PrepareLocked(const ServerJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartOnceComplete();

  static absl::Status Annotate(const absl::Status& status, int worker, int bucket);
  absl::Status Dispatch(int worker, const ChunkHeader& header, Pieces payload, Lane& lane);
  absl::Status OnWeights(int worker, const ChunkHeader& header, Pieces payload);
  absl::Status OnGradient(int worker, const ChunkHeader& header, Pieces payload, Lane& lane);
  absl::Status OnPushComplete(int worker, int bucket, Lane& lane);
  absl::Status OnAnnounce(int worker, const ChunkHeader& header, Lane& lane);
  // Backup workers: what is decided of the gradient; by this server, or by the first of several.
  absl::StatusOr<Verdict> VerdictOf(int worker, const ChunkHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(admission_mutex_);
  absl::Status OnNorm(const ChunkHeader& header, Lane& lane);
  absl::Status OnFetch(int worker);
  absl::Status OnLeave(int worker, Lane& lane);

  // What a decision on a bucket comes to: an update, replies. The caller delivers these once it holds no
  // lock.
  using Replies = std::vector<std::pair<int, Reply>>;
  // Straight into the worker's memory, where it has a place for them.
  bool CopyInPlace(int worker, int bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  absl::Status Act(int bucket, const Consistency::Decision& decision, Lane& lane, Replies& replies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  // Answers `readers` with the bucket's weights.
  absl::Status Answer(int bucket, const std::vector<int>& readers, Lane& lane, Replies& replies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(buckets_[bucket].mutex);
  // Clipping: once the last bucket of a step has been added up, makes the updates, or asks for the total of
  // all servers first. After every Act, without a bucket's lock.
  absl::Status OnceAllAreReduced(Lane& lane, Replies& replies);
  absl::Status ApplyReduced(double sum_of_squares, Lane& lane, Replies& replies);
  static absl::Status CheckChunk(const ChunkHeader& header, uint64_t next_offset, size_t bytes,
                                 size_t bucket_bytes);

  // Every bucket as it is now, for Join and Fetch.
  absl::StatusOr<std::vector<Reply>> AllWeights();
  void Deliver(int worker, Reply reply);
  void Count(int worker, const ChunkHeader& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stats_mutex_);
  void NoteDropped(int worker, int64_t next_step);

  void Watch();
  // Whom the others wait for; empty where nobody waits.
  std::string WaitedFor();

  Device& device_;
  const ServerOptions options_;

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<Presence> presence_ ABSL_GUARDED_BY(mutex_);
  std::vector<ServerJob> jobs_ ABSL_GUARDED_BY(mutex_);  // as each worker told it
  bool weights_arrived_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Made in worker 0's Join; from then on worker 0's thread may read it, and everybody once started_ is true.
  ServerJob job_;
  std::unique_ptr<ParameterShard> shard_;
  bool notes_arrivals_ = false;
  std::unique_ptr<BucketState[]> buckets_;
  Mutex admission_mutex_;  // before any bucket's
  // Backup workers, at the first server.
  std::optional<Admission> admission_ ABSL_GUARDED_BY(admission_mutex_);
  std::unique_ptr<Worker[]> workers_;
  std::atomic<size_t> reduced_{0};         // clipping: buckets whose gradient has been added up
  std::atomic<int64_t> awaited_norm_{-1};  // clipping: of which step the total is asked for

  std::atomic<bool> started_{false};  // all have joined, and the weights are in place
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> last_arrival_ns_;

  mutable Mutex stats_mutex_;
  ServerStats stats_ ABSL_GUARDED_BY(stats_mutex_);

  std::thread watchdog_;
};

}  // namespace psring
