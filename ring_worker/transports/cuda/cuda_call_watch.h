// Tracks the calls in flight on a GPU and reports one that exceeds its deadline: see CudaWatch.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_stream.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// Thread-safe.
class CudaCallWatch final : public CudaWatch {
 public:
  CudaCallWatch(int rank, int size, absl::Duration timeout) : rank_(rank), size_(size), timeout_(timeout) {}
  ~CudaCallWatch() override;

  // All of `call` has been enqueued on `queue`.
  absl::Status Note(const CallInfo& call, cudaStream_t queue);
  absl::Status Look() override;
  // The first failure is kept.
  void Fail(absl::Status why);
  absl::Status failure() const;

 private:
  struct InFlight {
    CallInfo call;
    cudaEvent_t done;
    MonotonicTime since;
  };

  absl::Status LookLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_, size_;
  const absl::Duration timeout_;
  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<cudaEvent_t> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
