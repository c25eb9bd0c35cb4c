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

struct WorkerStream {
  Mutex receive;  // one message of a worker at a time, and no loss of the worker meanwhile
  std::vector<Push> pushes ABSL_GUARDED_BY(receive);  // by bucket
  // Worker 0: initial weights, by bucket.
  std::vector<uint64_t> weights_bytes ABSL_GUARDED_BY(receive);
  std::vector<bool> weights_whole ABSL_GUARDED_BY(receive);
  size_t weights_left ABSL_GUARDED_BY(receive) = 0;  // worker 0: buckets of initial weights still missing
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

  std::shared_ptr<ReplySink> Sink() {
    MutexLock lock(mutex);
    return sink;
  }
};

}  // namespace psring
