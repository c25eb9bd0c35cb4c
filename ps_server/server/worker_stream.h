// A worker's stream, what the server sends on it, and what has arrived of the worker's pushes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {

class ReplySink;

// A message and its entire payload; the transport cuts it into chunks. `weights` stay readable while the
// reply exists.
struct Reply {
  message::ToWorker message;
  Snapshot weights = {};
  bool in_place = false;  // the weights are at the sink's PlaceOf already, and not in `weights`
  bool counted = false;   // in the server's statistics, which count each push once
  // A part of it, in bytes of the weights: from the beginning of a chunk to that of another, or to the end.
  // Parts come in ascending order, and only to sinks with TakesParts.
  size_t from = 0, upto = SIZE_MAX;
  // Used by the server: the sink that got what is before `from`, or in whose memory the weights are.
  std::shared_ptr<ReplySink> begun_on = {};
};

// By worker. The caller delivers them when it holds no lock.
using Replies = std::vector<std::pair<int, Reply>>;

// One worker's stream. Called from any thread, concurrently; must not block or call the server.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void Deliver(Reply reply) = 0;
  // Repeat the message for which Receive returns kNotYet. May be called before Receive returns.
  virtual void Proceed() = 0;
  // Whether a reply may come in parts, the first of them while the others are still being computed.
  virtual bool TakesParts() const { return false; }
  // Keeps the memory of gradients with ReceivedPayload::stays readable until their exchange is answered.
  // Null: read them before the call returns.
  virtual std::shared_ptr<const void> Memory() const { return nullptr; }
  // Where the weights (`bytes`) that answer the exchange of `bucket` may be written directly; null: nowhere.
  // Called before Deliver.
  struct Place {
    std::byte* data = nullptr;
    bool on_gpu = false;  // memory of a GPU, accessible to the server's GPU
  };
  virtual Place PlaceOf(int bucket, size_t bytes) {
    (void)bucket, (void)bytes;
    return {};
  }
  // The worker is no longer in the job, or the job has failed. Called at most once; nothing is delivered
  // afterwards.
  virtual void Abort(const absl::Status& why) = 0;
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

// A worker's push of one bucket. Exactly-once rules: protocol/protocol.md.
struct Push {
  int64_t step = -1;
  uint64_t resets = 0;
  int64_t samples = 0;
  uint64_t high_water = 0;  // bytes below it are added or staged
  bool whole = false;
  bool answered_again = false;  // at most once per stream or Rewind
};

// When answers are sent (modes.md).
struct AnswerOrder {
  bool serial = false;
  bool each_alone = false;  // each push is an update
  size_t buckets = 0;
};

struct WorkerStream {
  Mutex receive;  // one message of a worker at a time, and no loss of the worker meanwhile
  std::vector<Push> pushes ABSL_GUARDED_BY(receive);  // by bucket
  bool left ABSL_GUARDED_BY(receive) = false;
  bool rewound ABSL_GUARDED_BY(receive) = false;  // each push an update: no push since the worker's Rewind

  Mutex mutex;
  std::shared_ptr<ReplySink> sink ABSL_GUARDED_BY(mutex);
  int64_t pushes_complete ABSL_GUARDED_BY(mutex) = 0;  // skipped steps count as pushed
  // Serial: answers that wait for the rest of their step, one per bucket (modes.md).
  std::vector<Reply> held ABSL_GUARDED_BY(mutex);
  int64_t steps_answered ABSL_GUARDED_BY(mutex) = 0;  // serial, synchronous: answers to earlier steps pass
  size_t buckets_to_read ABSL_GUARDED_BY(mutex) = 0;  // joining again: buckets still missing
  int64_t joins_at ABSL_GUARDED_BY(mutex) = 0;
  bool joins_again ABSL_GUARDED_BY(mutex) = false;

  // The worker's pushes of the steps before `step` are complete and answered.
  void ContinueAt(int64_t step, size_t buckets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    pushes_complete = step * static_cast<int64_t>(buckets);
    steps_answered = step;
  }

  // The rest without `mutex`.
  std::shared_ptr<ReplySink> Sink() {
    MutexLock lock(mutex);
    return sink;
  }
  // Returns the previous one.
  std::shared_ptr<ReplySink> Replace(std::shared_ptr<ReplySink> by) {
    MutexLock lock(mutex);
    sink.swap(by);
    return by;
  }
  // Sends a reply; an answer of a serial job once its step allows it.
  void Deliver(Reply reply, const AnswerOrder& order);

 private:
  // Takes an answer, and returns those that may be sent now.
  std::vector<Reply> Hold(Reply reply, const AnswerOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Send(Reply reply);
};

}  // namespace psring
