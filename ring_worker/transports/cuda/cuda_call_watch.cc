#include "ring_worker/transports/cuda/cuda_call_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_context.h"

namespace psring {

CudaCallWatch::~CudaCallWatch() {
  MutexLock lock(mutex_);
  for (const InFlight& call : in_flight_) cudaEventDestroy(call.done);
  for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
}

absl::Status CudaCallWatch::Note(std::string what, cudaStream_t queue) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(LookLocked());
  cudaEvent_t done = nullptr;
  if (spare_.empty()) {
    PSRING_RETURN_IF_ERROR(
        CudaStatus("cudaEventCreate", cudaEventCreateWithFlags(&done, cudaEventDisableTiming)));
  } else {
    done = spare_.back();
    spare_.pop_back();
  }
  in_flight_.push_back({std::move(what), done, MonotonicNow()});
  return CudaStatus("cudaEventRecord", cudaEventRecord(done, queue));
}

absl::Status CudaCallWatch::Look() {
  MutexLock lock(mutex_);
  return LookLocked();
}

absl::Status CudaCallWatch::LookLocked() {
  if (!failure_.ok()) return failure_;
  while (!in_flight_.empty()) {
    const InFlight& first = in_flight_.front();
    const cudaError_t state = QueryEvent(first.done);
    if (state == cudaErrorNotReady) {
      if (MonotonicNow() <= first.since + timeout_) return absl::OkStatus();
      return failure_ = Late(first.what);
    }
    if (state != cudaSuccess) return failure_ = CudaStatus(absl::StrCat(who_, first.what), state);
    spare_.push_back(first.done);
    in_flight_.pop_front();
  }
  return absl::OkStatus();
}

std::string CudaCallWatch::oldest() const {
  MutexLock lock(mutex_);
  return in_flight_.empty() ? "" : in_flight_.front().what;
}

absl::Status CudaCallWatch::Late(const std::string& what) const {
  return DeadlineExceeded(who_, what, " was not done after ", absl::FormatDuration(timeout_), "; ", cause_);
}

void CudaCallWatch::Fail(absl::Status why) {
  MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = std::move(why);
}

absl::Status CudaCallWatch::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

}  // namespace psring
