#include "ring_worker/groups/nccl_communicator.h"

#include <sched.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"

namespace psring {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(200);  // then it sleeps between queries
constexpr absl::Duration kPoll = absl::Microseconds(50);

void Pause(MonotonicTime begin) {
  if (MonotonicNow() > begin + kSpin) {
    absl::SleepFor(kPoll);
  } else {
    sched_yield();
  }
}

}  // namespace

absl::Status NcclCommunicator::Connect(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(nccl_.ToStatus(Named("ncclCommInitRankConfig"),
                                          nccl_.CommInitRankConfig(&comm_, size_, id, rank_, &config)));
  }
  return AwaitIdle("the other ranks' communicators");
}

absl::Status NcclCommunicator::Split(int color, int key, NcclCommunicator* part) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(Examine());
    if (absl::Status status =
            nccl_.ToStatus(Named("ncclCommSplit"), nccl_.CommSplit(comm_, color, key, &made, &config));
        !status.ok()) {
      return Fail(status);
    }
  }
  // The part exists only when the parent has finished the split.
  PSRING_RETURN_IF_ERROR(AwaitIdle("split"));
  if (part == nullptr) return absl::OkStatus();
  {
    MutexLock lock(part->mutex_);
    part->comm_ = made;
  }
  return part->AwaitIdle("split");
}

NcclCommunicator::~NcclCommunicator() {
  bool finalizing = false;
  {
    MutexLock lock(mutex_);
    finalizing = comm_ != nullptr && aborted_.ok() && nccl_.ToStatus("", nccl_.CommFinalize(comm_)).ok();
  }
  const bool finalized = finalizing && AwaitIdle("the end of the communicator").ok();
  MutexLock lock(mutex_);
  if (comm_ != nullptr) (void)(finalized ? nccl_.CommDestroy(comm_) : nccl_.CommAbort(comm_));
  for (const InFlight& call : in_flight_) cudaEventDestroy(call.done);
  for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
}

absl::Status NcclCommunicator::Start(const std::string& what, cudaStream_t stream, const Call& call) {
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(Examine());
    if (absl::Status status = nccl_.ToStatus(Named(what), call(nccl_, comm_)); !status.ok())
      return Fail(status);
  }
  PSRING_RETURN_IF_ERROR(AwaitIdle(what));
  return Launched(what, stream);
}

// CUDA does not allow event queries on a thread that records.
absl::Status NcclCommunicator::Record(const std::string& what, const Call& call) {
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(ExamineWithoutEvents());
    if (absl::Status status = nccl_.ToStatus(Named(what), call(nccl_, comm_)); !status.ok())
      return Fail(status);
  }
  return AwaitIdle(what);
}

absl::Status NcclCommunicator::Launched(const std::string& what, cudaStream_t stream) {
  MutexLock lock(mutex_);
  PSRING_ASSIGN_OR_RETURN(const cudaEvent_t done, TakeEvent());
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventRecord", cudaEventRecord(done, stream)));
  in_flight_.push_back({what, done, MonotonicNow()});
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Wait() {
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    {
      MutexLock lock(mutex_);
      PSRING_RETURN_IF_ERROR(Examine());
      if (in_flight_.empty()) return absl::OkStatus();
    }
    Pause(begin);
  }
}

absl::Status NcclCommunicator::Look() {
  MutexLock lock(mutex_);
  return Examine();
}

void NcclCommunicator::Abort(absl::Status why) {
  MutexLock lock(mutex_);
  if (aborted_.ok()) aborted_ = why.ok() ? absl::CancelledError("aborted") : std::move(why);
}

absl::Status NcclCommunicator::aborted() const {
  MutexLock lock(mutex_);
  return aborted_;
}

std::string NcclCommunicator::Named(const std::string& what) const {
  return absl::StrCat("rank ", rank_, ": nccl ", what);
}

absl::Status NcclCommunicator::Late(const std::string& what) const {
  return absl::DeadlineExceededError(
      absl::StrCat(Named(what), " was not done after ", absl::FormatDuration(timeout_),
                   "; at least one of the other ", size_ - 1, " ranks has not joined it"));
}

absl::Status NcclCommunicator::AwaitIdle(const std::string& what) {
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!aborted_.ok()) return Fail(aborted_);
      const absl::StatusOr<bool> idle = IsIdle();
      if (!idle.ok()) {
        return Fail(
            absl::Status(idle.status().code(), absl::StrCat(Named(what), ": ", idle.status().message())));
      }
      if (*idle) return absl::OkStatus();
      if (MonotonicNow() > begin + timeout_) return Fail(Late(what));
    }
    Pause(begin);
  }
}

absl::StatusOr<bool> NcclCommunicator::IsIdle() {
  ncclResult_t state = ncclSuccess;
  PSRING_RETURN_IF_ERROR(nccl_.ToStatus("ncclCommGetAsyncError", nccl_.CommGetAsyncError(comm_, &state)));
  if (state == ncclSuccess || state == ncclInProgress) return state == ncclSuccess;
  return absl::UnavailableError(absl::StrCat(nccl_.GetErrorString(state), ": ", nccl_.GetLastError(comm_)));
}

absl::Status NcclCommunicator::ExamineWithoutEvents() {
  if (!aborted_.ok()) return Fail(aborted_);
  const absl::StatusOr<bool> idle = IsIdle();
  const std::string what = in_flight_.empty() ? "communicator" : in_flight_.front().what;
  if (!idle.ok()) {
    return Fail(absl::Status(idle.status().code(), absl::StrCat(Named(what), ": ", idle.status().message())));
  }
  return absl::OkStatus();
}

// The first error from any source.
absl::Status NcclCommunicator::Examine() {
  PSRING_RETURN_IF_ERROR(ExamineWithoutEvents());
  while (!in_flight_.empty()) {
    const InFlight& first = in_flight_.front();
    const cudaError_t state = QueryEvent(first.done);
    if (state == cudaErrorNotReady) {
      return MonotonicNow() > first.since + timeout_ ? Fail(Late(first.what)) : absl::OkStatus();
    }
    if (state != cudaSuccess) return Fail(CudaStatus(Named(first.what), state));
    spare_.push_back(first.done);
    in_flight_.pop_front();
  }
  return absl::OkStatus();
}

// Makes NCCL's kernels on the GPU return.
absl::Status NcclCommunicator::Fail(absl::Status why) {
  if (aborted_.ok()) aborted_ = std::move(why);
  if (comm_ != nullptr) (void)nccl_.CommAbort(comm_);
  comm_ = nullptr;
  return aborted_;
}

absl::StatusOr<cudaEvent_t> NcclCommunicator::TakeEvent() {
  if (!spare_.empty()) {
    const cudaEvent_t event = spare_.back();
    spare_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  PSRING_RETURN_IF_ERROR(
      CudaStatus("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
  return event;
}

}  // namespace psring
