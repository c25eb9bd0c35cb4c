// One rank's NCCL communicator, whose calls return at once and whose failures are asked for.
//
// NCCL's kernels wait for their peers on the GPU, for ever if a peer is gone; NCCL knows of that only when it
// is asked. So this is a CudaWatch of every stream that it works on: whoever waits for such a stream asks it,
// and an error, or a collective that is not done in time, ends the communicator, which makes the kernels
// return.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_stream.h"
#include "ring_worker/groups/nccl_library.h"

namespace psring {

// Thread-safe. The calling thread must have selected the GPU.
class NcclCommunicator final : public CudaWatch {
 public:
  NcclCommunicator(NcclLibrary nccl, int rank, int size, absl::Duration timeout)
      : nccl_(std::move(nccl)), rank_(rank), size_(size), timeout_(timeout) {}
  ~NcclCommunicator() override;

  // With all ranks; returns when it can be used.
  absl::Status Connect(const ncclUniqueId& id);
  // With all ranks, while nothing is under way: those of one color become `part`, which has not been
  // connected, in the order of `key`. `part` is null for NCCL_SPLIT_NOCOLOR. Returns when the part can be
  // used.
  absl::Status Split(int color, int key, NcclCommunicator* part);

  using Call = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>;
  // `call` puts a collective on `stream`; returns when NCCL has taken it in, which is long before it is done.
  absl::Status Start(const std::string& what, cudaStream_t stream, const Call& call);
  // The same while `stream` is recorded: nothing is under way before it is replayed, each time with Launched
  // behind it. Graphs that hold it must be gone before the communicator, whose end waits for them.
  absl::Status Record(const std::string& what, const Call& call);
  // What was started on `stream` so far is under way: `what`.
  absl::Status Launched(const std::string& what, cudaStream_t stream);
  // Until all that was started is done.
  absl::Status Wait();

  absl::Status Look() override;

  // From any thread; who waits learns `why`. The communicator itself is ended by the next who uses or asks
  // it.
  void Abort(absl::Status why);
  absl::Status aborted() const;

 private:
  struct InFlight {
    std::string what;
    cudaEvent_t done;
    absl::Time since;
  };

  std::string Named(const std::string& what) const;
  absl::Status Late(const std::string& what) const;
  // Until NCCL has taken in what it was told.
  absl::Status AwaitIdle(const std::string& what);
  absl::StatusOr<bool> IsIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Examine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ExamineWithoutEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<cudaEvent_t> TakeEvent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NcclLibrary nccl_;
  const int rank_, size_;
  const absl::Duration timeout_;
  mutable Mutex mutex_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<cudaEvent_t> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
