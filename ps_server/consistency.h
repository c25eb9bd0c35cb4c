// Who waits for whom: a pure state machine. No tensors, threads, clock or I/O; the live server and the
// simulator drive the same code. One instance a bucket.
//
// *worker* 0 to workers - 1; *step* a worker's step, from 0; *version* number of updates applied to the
// bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

class Consistency {
 public:
  struct Decision {
    bool accept = true;   // false: the push must be dropped
    std::string reason;   // why it was not accepted
    int apply_count = 0;  // 0: wait for more; n: these n pushes, summed, make one update now
    std::vector<int>
        may_read;  // workers whose pending pull is answered now, with the version after the update
  };

  virtual ~Consistency() = default;
  virtual std::string name() const = 0;  // "sync", "async"
  virtual int64_t version() const = 0;

  // Whether a push of `worker`'s `step` may begin: asked before its first byte is added to anything, because
  // a sum cannot be taken back. The error says whether it comes from the past, from the future, or twice.
  virtual absl::Status MayPush(int worker, int64_t step) const = 0;

  // The whole gradient of `worker`'s `step` has arrived. Not accepted where MayPush would not be OK.
  virtual Decision OnPush(int worker, int64_t step) = 0;
};

// One update for one push of every worker; all read the version it made.
std::unique_ptr<Consistency> MakeSynchronous(int workers);
// Each push makes one update when it arrives; its worker reads the version that this very push created.
std::unique_ptr<Consistency> MakeAsynchronous(int workers);

absl::StatusOr<std::unique_ptr<Consistency>> MakeConsistency(const std::string& name, int workers);

}  // namespace psring
