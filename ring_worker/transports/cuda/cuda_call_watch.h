// Tracks the work in flight on a GPU and reports what exceeds its deadline: see CudaWatch.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_stream.h"

namespace psring {

// Thread-safe.
class CudaCallWatch final : public CudaWatch {
 public:
  // Errors begin with `who`, "rank 0: ", and end with `cause`, which a call that is late may have.
  CudaCallWatch(std::string who, absl::Duration timeout, std::string cause)
      : who_(std::move(who)), cause_(std::move(cause)), timeout_(timeout) {}
  ~CudaCallWatch() override;

  // All of `what` has been enqueued on `queue`.
  absl::Status Note(std::string what, cudaStream_t queue);
  absl::Status Look() override;
  // The oldest in flight, after Look; empty: there is none.
  std::string oldest() const;
  absl::Status Late(const std::string& what) const;
  // The first failure is kept.
  void Fail(absl::Status why);
  absl::Status failure() const;

 private:
  struct InFlight {
    std::string what;
    cudaEvent_t done;
    MonotonicTime since;
  };

  absl::Status LookLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string who_, cause_;
  const absl::Duration timeout_;
  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<cudaEvent_t> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
