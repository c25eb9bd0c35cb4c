// What the streams, events and buffers of one GPU share. Used only by files that call CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace psring {

// "cudaMalloc: out of memory", as Internal. Clears the error, so that later calls do not return it.
absl::Status CudaStatus(absl::string_view call, cudaError_t error);

// cudaEventQuery. cudaErrorNotReady does not remain as the thread's last error, which the next kernel launch
// would report as its own.
cudaError_t QueryEvent(cudaEvent_t event);

// Thread-safe. Events are reused, because creating one takes longer than recording it.
class CudaContext {
 public:
  explicit CudaContext(int index);
  ~CudaContext();

  int index() const { return index_; }
  const std::string& name() const { return name_; }  // "cuda:0"

  // Selects this GPU for the CUDA calls of the calling thread.
  absl::Status Select() const;

  enum class EventUse { kOrder, kTime };
  absl::StatusOr<cudaEvent_t> TakeEvent(EventUse use);
  void GiveBack(EventUse use, cudaEvent_t event);

 private:
  const int index_;
  const std::string name_;
  Mutex mutex_;
  std::vector<cudaEvent_t> spare_[2] ABSL_GUARDED_BY(mutex_);  // by use
};

}  // namespace psring
