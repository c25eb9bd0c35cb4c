// A server's state of one worker: its stream, and what has arrived of its pushes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "ps_server/server/reply.h"

namespace psring {

// A worker's push of one bucket. Exactly-once rules: protocol/protocol.md.
struct Push {
  int64_t step = -1;
  uint64_t resets = 0;
  int64_t samples = 0;
  uint64_t high_water = 0;  // bytes below it are added or staged
  bool whole = false;
  bool answered_again = false;  // at most once per stream
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
