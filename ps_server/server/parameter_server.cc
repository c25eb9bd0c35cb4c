#include "ps_server/server/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/devices/make_ops.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

// Unique among all servers that these workers may use.
uint64_t NewIncarnation() {
  return KernelRandom() | 1;  // never 0
}

}  // namespace

ParameterServer::ParameterServer(Device& device, const ServerOptions& options)
    : device_(device),
      options_(options),
      incarnation_(NewIncarnation()),
      members_(options.workers),
      jobs_(options.workers),
      rejections_(options.workers),
      workers_(std::make_unique<WorkerStream[]>(options.workers)),
      first_step_(options.workers, 0),
      last_arrival_ns_(MonotonicNanos()),
      checkpointing_(options.checkpoints, options.checkpoint_every,
                     [this](const absl::Status& why) { Abort(why); }) {
  PSRING_CHECK(options.workers > 0);
  {
    MutexLock lock(stats_mutex_);
    stats_.worker_pushes.resize(options.workers);
    stats_.worker_staleness_sum.resize(options.workers);
    stats_.worker_dropped.resize(options.workers);
  }
  watchdog_ = std::thread([this] { Watch(); });
}

ParameterServer::~ParameterServer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  watchdog_.join();
  if (queue_thread_.joinable()) {
    shard_->staging().Close();
    queue_thread_.join();
  }
}

absl::StatusOr<Lane> ParameterServer::NewLane() const {
  Lane lane;
  PSRING_ASSIGN_OR_RETURN(lane.ops, MakeUpdateOps(device_));
  lane.stream = device_.NewStream(StreamKind::kCompute, "server");
  return lane;
}

absl::Status ParameterServer::OnAnnounce(int worker, const message::Announcement& announcement, Lane& lane) {
  if (announcement.incarnation != incarnation_) return absl::OkStatus();
  Replies replies;
  PSRING_ASSIGN_OR_RETURN(const Verdict verdict, rounds_->OnAnnounce(worker, announcement, lane, replies));
  if (!verdict.admitted && announcement.step >= 0) {
    MutexLock lock(stats_mutex_);
    ++stats_.dropped_gradients;
    ++stats_.worker_dropped[worker];
  }
  Finish(std::move(replies));
  return absl::OkStatus();
}

absl::Status ParameterServer::OnFetch(int worker, const message::Fetch& fetch) {
  if (fetch.slot < 0 || fetch.slot > shard_->slots()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " asked for slot ", fetch.slot,
                                                   " of an optimizer that has ", shard_->slots()));
  }
  PSRING_ASSIGN_OR_RETURN(std::vector<Reply> weights, rounds_->Weights(static_cast<int>(fetch.slot)));
  for (Reply& bucket : weights) Deliver(worker, std::move(bucket));
  Deliver(worker, {.message = message::FetchDone{}});
  return absl::OkStatus();
}

absl::Status ParameterServer::OnLeave(int worker, Lane& lane) {
  for (const Push& push : workers_[worker].pushes) {
    if (push.step < 0 || push.whole) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " leaves in the middle of its push of step ", push.step));
  }
  if (worker == 0 && rows_ != nullptr && rows_->AwaitsInitialRows()) {
    return absl::FailedPreconditionError("worker 0 leaves before it has sent all rows of the checkpoint");
  }
  Replies replies;
  PSRING_ASSIGN_OR_RETURN(const Verdict verdict, rounds_->OnLeave(worker, lane, replies));
  if (rows_ != nullptr) rows_->OnGone(worker, replies);
  workers_[worker].left = true;
  Finish(std::move(replies));
  // The worker repeats nothing any more. After the last step of all, its pushes are in a checkpoint already.
  if (rule_.each_alone() && checkpointing_.enabled() && !finished_) {
    TakeCheckpoint(/*finished=*/false);
    checkpointing_.Flush();
  }
  options_.on_leave(stats());
  // Before the worker counts as having left: after the last one, the server may be destroyed.
  Deliver(worker, {.message = message::Left{.version = verdict.complete > 0 ? verdict.version : 0,
                                            .complete = verdict.complete}});
  {
    MutexLock lock(mutex_);
    members_.Leave(worker);
    changed_.NotifyAll();
  }
  ReleaseBarriers();
  return absl::OkStatus();
}

absl::Status ParameterServer::OnBarrier(int worker, int64_t number) {
  if (number < 0 || number >= Membership::kBarriers) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " waits at barrier ", number));
  }
  if (workers_[worker].rewound) {  // it reaches this barrier again
    Deliver(worker, {.message = message::BarrierPassed{.number = number}});
    return absl::OkStatus();
  }
  {
    MutexLock lock(mutex_);
    members_.ReachBarrier(worker, static_cast<int>(number));
  }
  ReleaseBarriers();
  return absl::OkStatus();
}

void ParameterServer::ReleaseBarriers() {
  Membership::Released released;
  {
    MutexLock lock(mutex_);
    released = members_.ReleaseBarriers();
  }
  // A worker may leave at once. If the server dies after that, its restart must not wait for that worker.
  if (released.last && checkpointing_.enabled()) {
    finished_ = TakeCheckpoint(/*finished=*/true);
    checkpointing_.Flush();
  }
  for (const auto& [worker, number] : released.workers) {
    Deliver(worker, {.message = message::BarrierPassed{.number = number}});
  }
}

// Every worker that knows of another server's restart sends a Rewind. The first one ends all streams; the
// next incarnation ignores the others because it is already in their epoch.
absl::Status ParameterServer::OnRewind(int worker, const message::Rewind& rewind, Lane& lane) {
  if (started_ && rule_.each_alone()) {  // the worker repeats its pushes from that step on
    Replies replies;
    PSRING_RETURN_IF_ERROR(rounds_->ReleaseWaiting(lane, replies));
    Finish(std::move(replies));
    workers_[worker].rewound = true;
    int barrier = -1;
    {
      MutexLock lock(mutex_);
      barrier = members_.LeaveBarrier(worker);
    }
    if (barrier >= 0) Deliver(worker, {.message = message::BarrierPassed{.number = barrier}});
    return absl::OkStatus();
  }
  if (!started_ || rewind.epoch <= epoch_) return absl::OkStatus();
  if (options_.servers == 1 || !checkpointing_.enabled() || rewind.step < 0) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " asks to go back to step ",
                                                      rewind.step, ", which this job cannot do"));
  }
  {
    MutexLock lock(mutex_);
    if (!goes_back_to_.has_value()) goes_back_to_ = rewind;
  }
  Abort(absl::CancelledError(absl::StrCat("the job goes back to step ", rewind.step, " or before")));
  return absl::OkStatus();
}

std::optional<message::Rewind> ParameterServer::goes_back_to() const {
  MutexLock lock(mutex_);
  return goes_back_to_;
}

ServerStats ParameterServer::stats() const {
  ServerStats stats;
  {
    MutexLock lock(stats_mutex_);
    stats = stats_;
  }
  if (started_) stats.staging_peak_bytes = shard_->staging().peak_bytes();
  return stats;
}

bool ParameterServer::TakeCheckpoint(bool finished) {
  absl::StatusOr<std::optional<Checkpoint>> taken = rounds_->Save();
  if (!taken.ok()) Abort(taken.status());
  if (!taken.ok() || !taken->has_value()) return false;
  Checkpoint checkpoint = **std::move(taken);
  checkpoint.finished = finished;
  checkpoint.stats = stats();
  checkpointing_.Write(std::move(checkpoint));
  return true;
}

bool ParameterServer::CheckpointNow(MonotonicTime deadline) {
  if (!checkpointing_.enabled() || !started_) return false;
  checkpointing_.Ask();
  if (TakeCheckpoint(/*finished=*/finished_)) {
    checkpointing_.Flush();
    return true;
  }
  return checkpointing_.AwaitWritten(deadline);
}

}  // namespace psring
