#include "ring_worker/groups/nccl_communicator.h"

#include <sched.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"

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

// Which rank may be missing.
std::string Missing(const RendezvousOptions& ranks) {
  if (ranks.world_size == 2) {
    return absl::StrCat("rank ", ranks.JobRank(1 - ranks.rank), " has not joined it");
  }
  return absl::StrCat("at least one of the other ", ranks.world_size - 1, " ranks has not joined it");
}

}  // namespace

NcclCommunicator::NcclCommunicator(NcclLibrary nccl, const RendezvousOptions& ranks, absl::Duration timeout)
    : nccl_(std::move(nccl)),
      rank_(ranks.rank),
      size_(ranks.world_size),
      who_(absl::StrCat("rank ", ranks.JobRank(ranks.rank), ": nccl ")),
      timeout_(timeout),
      calls_(who_, timeout, Missing(ranks)) {}

absl::Status NcclCommunicator::Connect(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(nccl_.ToStatus(who_ + "ncclCommInitRankConfig",
                                          nccl_.CommInitRankConfig(&comm_, size_, id, rank_, &config)));
  }
  return AwaitIdle("the other ranks' communicators");
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> NcclCommunicator::Split(int color, int key,
                                                                          const RendezvousOptions& ranks) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  // The part exists only when the parent has finished the split.
  PSRING_RETURN_IF_ERROR(Accept(
      "ncclCommSplit",
      [&](const NcclLibrary& nccl, ncclComm_t comm) {
        return nccl.CommSplit(comm, color, key, &made, &config);
      },
      /*recording=*/false));
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  auto part = std::make_shared<NcclCommunicator>(nccl_, ranks, timeout_);
  {
    MutexLock lock(part->mutex_);
    part->comm_ = made;
  }
  PSRING_RETURN_IF_ERROR(part->AwaitIdle("split"));
  return part;
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
}

absl::Status NcclCommunicator::Accept(const std::string& what, const Call& call, bool recording) {
  {
    MutexLock lock(mutex_);
    // CUDA does not allow event queries on a thread that records.
    PSRING_RETURN_IF_ERROR(recording ? ExamineWithoutEvents() : Examine());
    if (absl::Status status = nccl_.ToStatus(who_ + what, call(nccl_, comm_)); !status.ok()) {
      return Fail(status);
    }
  }
  return AwaitIdle(what);
}

absl::Status NcclCommunicator::Start(const std::string& what, cudaStream_t stream, const Call& call) {
  PSRING_RETURN_IF_ERROR(Accept(what, call, /*recording=*/false));
  return Launched(what, stream);
}

absl::Status NcclCommunicator::Record(const std::string& what, const Call& call) {
  return Accept(what, call, /*recording=*/true);
}

absl::Status NcclCommunicator::Wait() {
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    PSRING_RETURN_IF_ERROR(Look());
    if (calls_.oldest().empty()) return absl::OkStatus();
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

absl::Status NcclCommunicator::AwaitIdle(const std::string& what) {
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    {
      MutexLock lock(mutex_);
      PSRING_ASSIGN_OR_RETURN(const bool idle, IsIdle(what));
      if (idle) return absl::OkStatus();
      if (MonotonicNow() > begin + timeout_) return Fail(calls_.Late(what));
    }
    Pause(begin);
  }
}

absl::StatusOr<bool> NcclCommunicator::IsIdle(const std::string& what) {
  if (!aborted_.ok()) return Fail(aborted_);
  ncclResult_t state = ncclSuccess;
  absl::Status status = nccl_.ToStatus(absl::StrCat(who_, what, ": ncclCommGetAsyncError"),
                                       nccl_.CommGetAsyncError(comm_, &state));
  if (status.ok() && state != ncclSuccess && state != ncclInProgress) {
    status = Unavailable(who_, what, ": ", nccl_.GetErrorString(state), ": ", nccl_.GetLastError(comm_));
  }
  if (!status.ok()) return Fail(status);
  return state == ncclSuccess;
}

absl::Status NcclCommunicator::ExamineWithoutEvents() {
  const std::string oldest = calls_.oldest();
  return IsIdle(oldest.empty() ? "communicator" : oldest).status();
}

// The first error from any source.
absl::Status NcclCommunicator::Examine() {
  PSRING_RETURN_IF_ERROR(ExamineWithoutEvents());
  const absl::Status status = calls_.Look();
  return status.ok() ? status : Fail(status);
}

// Makes NCCL's kernels on the GPU return.
absl::Status NcclCommunicator::Fail(absl::Status why) {
  if (aborted_.ok()) aborted_ = std::move(why);
  if (comm_ != nullptr) (void)nccl_.CommAbort(comm_);
  comm_ = nullptr;
  return aborted_;
}

}  // namespace psring
