// One rank's NCCL communicator in non-blocking mode.
//
// NCCL's kernels wait for their peers on the GPU, forever if a peer is gone, and NCCL reports that only when
// queried. So this is a CudaWatch of every stream that it works on: a thread that waits for such a stream
// queries it, and an error, or a collective beyond its deadline, aborts the communicator, which makes the
// kernels return.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_stream.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/groups/nccl_library.h"
#include "ring_worker/transports/cuda/cuda_call_watch.h"

namespace psring {

// Thread-safe. The calling thread must have selected the GPU.
class NcclCommunicator final : public CudaWatch {
 public:
  // `ranks`: which rank of how many this is; errors name them by their numbers in the job.
  NcclCommunicator(NcclLibrary nccl, const RendezvousOptions& ranks, absl::Duration timeout);
  ~NcclCommunicator() override;

  // Collective; returns when the communicator can be used.
  absl::Status Connect(const ncclUniqueId& id);
  // Collective, while nothing is in progress: the ranks of one color become a part, in the order of `key`,
  // which is that of `ranks`. Null for NCCL_SPLIT_NOCOLOR. Returns when the part can be used.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Split(int color, int key, const RendezvousOptions& ranks);

  using Call = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>;
  // `call` enqueues a collective on `stream`; returns when NCCL has accepted it, long before it is done.
  absl::Status Start(const std::string& what, cudaStream_t stream, const Call& call);
  // The same while `stream` is recorded: the collective runs at each replay, which Launched must follow.
  // Graphs that contain it must be destroyed before the communicator, whose destructor waits for them.
  absl::Status Record(const std::string& what, const Call& call);
  // Watches the work that was enqueued on `stream` so far; errors name it `what`.
  absl::Status Launched(const std::string& what, cudaStream_t stream) { return calls_.Note(what, stream); }
  // Waits until everything that was started is done.
  absl::Status Wait();

  absl::Status Look() override;

  // From any thread; waiting threads get `why`. The next thread that uses or queries the communicator aborts
  // it.
  void Abort(absl::Status why);

 private:
  // Calls NCCL; returns when it has accepted the operation.
  absl::Status Accept(const std::string& what, const Call& call, bool recording);
  // Waits until NCCL has accepted the operation.
  absl::Status AwaitIdle(const std::string& what);
  // `what`: what errors name.
  absl::StatusOr<bool> IsIdle(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Examine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ExamineWithoutEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NcclLibrary nccl_;
  const int rank_, size_;
  const std::string who_;  // in errors
  const absl::Duration timeout_;
  CudaCallWatch calls_;  // started collectives
  Mutex mutex_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
