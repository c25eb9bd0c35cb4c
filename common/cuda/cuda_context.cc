#include "common/cuda/cuda_context.h"

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {

absl::Status CudaStatus(absl::string_view call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return Internal(call, ": ", cudaGetErrorString(error));
}

cudaError_t QueryEvent(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) (void)cudaGetLastError();
  return state;
}

CudaContext::CudaContext(int index) : index_(index), name_(absl::StrCat("cuda:", index)) {}

CudaContext::~CudaContext() {
  MutexLock lock(mutex_);
  for (const std::vector<cudaEvent_t>& events : spare_) {
    for (const cudaEvent_t event : events) cudaEventDestroy(event);
  }
}

absl::Status CudaContext::Select() const { return CudaStatus("cudaSetDevice", cudaSetDevice(index_)); }

absl::StatusOr<cudaEvent_t> CudaContext::TakeEvent(EventUse use) {
  {
    MutexLock lock(mutex_);
    std::vector<cudaEvent_t>& spare = spare_[static_cast<int>(use)];
    if (!spare.empty()) {
      const cudaEvent_t event = spare.back();
      spare.pop_back();
      return event;
    }
  }
  PSRING_RETURN_IF_ERROR(Select());
  cudaEvent_t event = nullptr;
  const unsigned flags = use == EventUse::kTime ? cudaEventDefault : cudaEventDisableTiming;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventCreate", cudaEventCreateWithFlags(&event, flags)));
  return event;
}

void CudaContext::GiveBack(EventUse use, cudaEvent_t event) {
  MutexLock lock(mutex_);
  spare_[static_cast<int>(use)].push_back(event);
}

}  // namespace psring
