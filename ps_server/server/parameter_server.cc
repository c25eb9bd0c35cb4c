// The life of a server, the messages that are not of buckets or rows, and the replies.
#include "ps_server/server/parameter_server.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/device_factory/make_ops.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

constexpr absl::Duration kIdle = absl::Seconds(3);

ServerStats NoStats(int workers) {
  ServerStats stats;
  const std::vector<int64_t> none(static_cast<size_t>(workers));
  stats.worker_pushes = stats.worker_staleness_sum = stats.worker_dropped = none;
  return stats;
}

absl::Duration CheckInterval(const ServerOptions& options) {
  return std::clamp(std::min(options.timeout, options.worker_timeout + absl::Milliseconds(100)) / 10,
                    absl::Milliseconds(10), absl::Seconds(1));
}

}  // namespace

ParameterServer::ParameterServer(Device& device, const ServerOptions& options)
    : device_(device),
      options_(options),
      incarnation_(KernelRandom() | 1),  // unique among the servers of these workers; never 0
      members_(options.workers),
      start_(options.workers, options.server, options.servers),
      workers_(std::make_unique<WorkerStream[]>(options.workers)),
      checkpointing_(options.checkpoints, options.checkpoint_every,
                     [this](const absl::Status& why) { Abort(why); }),
      stats_(NoStats(options.workers)),
      watchdog_(
          CheckInterval(options), options.timeout, [this] { LoseOverdue(); }, [this] { OnSilence(); }) {
  PSRING_CHECK(options.workers > 0);
}

ParameterServer::~ParameterServer() {
  if (!queue_thread_.joinable()) return;
  shard_->staging().Close();
  queue_thread_.join();
}

absl::StatusOr<Lane> ParameterServer::NewLane() const {
  Lane lane;
  PSRING_ASSIGN_OR_RETURN(lane.ops, MakeUpdateOps(device_));
  lane.stream = device_.NewStream(StreamKind::kCompute, "server");
  return lane;
}

template <typename Kind>
absl::Status ParameterServer::On(const Kind& message, Arrival& from) {
  constexpr bool pulls = std::is_same_v<Kind, message::PullRows>;
  constexpr bool pushes = std::is_same_v<Kind, message::PushRows>;
  if (rows_ == nullptr) {
    const char* const does = pulls ? " pulls" : pushes ? " pushes" : " sends";
    return InvalidArgument("worker ", from.worker, does, " rows in a job without tables");
  }
  PSRING_RETURN_IF_ERROR(rows_->On(from.worker, message, from.payload.pieces, from.replies));
  if (pulls || pushes) {  // rows and their numbers
    MutexLock stats_lock(stats_mutex_);
    stats_.payload_rx_bytes += TotalBytes(from.payload.pieces);
  }
  return absl::OkStatus();
}

template <>
absl::Status ParameterServer::On(const message::Join&, Arrival& from) {
  return InvalidArgument("worker ", from.worker, " sent a second Join");
}

template <>
absl::Status ParameterServer::On(const message::InitialWeights& chunk, Arrival& from) {
  if (start_.restored()) return absl::OkStatus();  // the checkpoint's are newer
  if (from.worker != 0 || !receiver_->lacks_weights()) {
    return FailedPrecondition("worker ", from.worker, " sent initial weights that were not requested");
  }
  PSRING_RETURN_IF_ERROR(receiver_->OnWeights(chunk, from.payload.pieces));
  if (receiver_->lacks_weights()) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    start_.OnWeights();
  }
  return StartOnceComplete();
}

template <>
absl::Status ParameterServer::On(const message::Gradient& chunk, Arrival& from) {
  PSRING_ASSIGN_OR_RETURN(const BucketReceiver::Received received,
                          receiver_->OnGradient(from.worker, chunk, from.payload, from.lane, from.replies));
  from.receipt = received.receipt;
  from.completes = received.complete;
  if (received.complete && finished_) finished_ = false;  // it repeats what another server has lost
  return absl::OkStatus();
}

template <>
absl::Status ParameterServer::On(const message::NormTotal& total, Arrival& from) {
  return rounds_->OnNormTotal(total, from.lane, from.replies);
}

template <>
absl::Status ParameterServer::On(const message::Announcement& announcement, Arrival& from) {
  if (announcement.incarnation != incarnation_) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const Verdict verdict,
                          rounds_->OnAnnounce(from.worker, announcement, from.lane, from.replies));
  if (!verdict.admitted && announcement.step >= 0) {
    MutexLock lock(stats_mutex_);
    ++stats_.dropped_gradients;
    ++stats_.worker_dropped[from.worker];
  }
  return absl::OkStatus();
}

template <>
absl::Status ParameterServer::On(const message::Fetch& fetch, Arrival& from) {
  if (fetch.slot < 0 || fetch.slot > shard_->slots()) {
    return InvalidArgument("worker ", from.worker, " asked for slot ", fetch.slot,
                           " of an optimizer that has ", shard_->slots());
  }
  PSRING_ASSIGN_OR_RETURN(std::vector<Reply> weights, rounds_->Weights(static_cast<int>(fetch.slot)));
  for (Reply& bucket : weights) Deliver(from.worker, std::move(bucket));
  Deliver(from.worker, {.message = message::FetchDone{}});
  return absl::OkStatus();
}

template <>
absl::Status ParameterServer::On(const message::Leave&, Arrival& from) {
  const int worker = from.worker;
  for (const Push& push : workers_[worker].pushes) {
    if (push.step < 0 || push.whole) continue;
    return FailedPrecondition("worker ", worker, " leaves in the middle of its push of step ", push.step);
  }
  if (worker == 0 && rows_ != nullptr && rows_->AwaitsInitialRows()) {
    return FailedPrecondition("worker 0 leaves before it has sent all rows of the checkpoint");
  }
  PSRING_ASSIGN_OR_RETURN(const Verdict verdict, rounds_->OnLeave(worker, from.lane, from.replies));
  if (rows_ != nullptr) rows_->OnGone(worker, from.replies);
  workers_[worker].left = true;
  Finish(std::exchange(from.replies, {}));
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

template <>
absl::Status ParameterServer::On(const message::Barrier& barrier, Arrival& from) {
  const int64_t number = barrier.number;
  if (number < 0 || number >= Membership::kBarriers) {
    return InvalidArgument("worker ", from.worker, " waits at barrier ", number);
  }
  if (workers_[from.worker].rewound) {  // it reaches this barrier again
    Deliver(from.worker, {.message = message::BarrierPassed{.number = number}});
    return absl::OkStatus();
  }
  {
    MutexLock lock(mutex_);
    members_.ReachBarrier(from.worker, static_cast<int>(number));
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
template <>
absl::Status ParameterServer::On(const message::Rewind& rewind, Arrival& from) {
  if (started_ && rule_.each_alone()) {  // the worker repeats its pushes from that step on
    PSRING_RETURN_IF_ERROR(rounds_->ReleaseWaiting(from.lane, from.replies));
    Finish(std::exchange(from.replies, {}));
    workers_[from.worker].rewound = true;
    for (Push& push : workers_[from.worker].pushes) push.answered_again = false;
    int barrier = -1;
    {
      MutexLock lock(mutex_);
      barrier = members_.LeaveBarrier(from.worker);
    }
    if (barrier >= 0) Deliver(from.worker, {.message = message::BarrierPassed{.number = barrier}});
    return absl::OkStatus();
  }
  if (!started_ || rewind.epoch <= start_.epoch()) return absl::OkStatus();
  if (options_.servers == 1 || !checkpointing_.enabled() || rewind.step < 0) {
    return FailedPrecondition("worker ", from.worker, " asks to go back to step ", rewind.step,
                              ", which this job cannot do");
  }
  {
    MutexLock lock(mutex_);
    if (!goes_back_to_.has_value()) goes_back_to_ = rewind;
  }
  Abort(Cancelled("the job goes back to step ", rewind.step, " or before"));
  return absl::OkStatus();
}

Receipt ParameterServer::Receive(int worker, const ReplySink* sink, const message::ToServer& message,
                                 const ReceivedPayload& payload, Lane& lane) {
  if (failed_) return Receipt::kTaken;
  watchdog_.NoteArrival();
  Arrival arrival{.worker = worker, .payload = payload, .lane = lane};
  absl::Status status;
  {
    MutexLock receive_lock(workers_[worker].receive);
    // The worker has another stream by now, or is no longer in the job.
    if (workers_[worker].Sink().get() != sink) return Receipt::kTaken;
    status = Dispatch(message, arrival);
  }
  if (!status.ok()) Expel(worker, sink, status);
  return arrival.receipt;
}

absl::Status ParameterServer::Dispatch(const message::ToServer& message, Arrival& from) {
  if (workers_[from.worker].left) {
    // The total of a step's norm may arrive after the step is complete.
    if (std::holds_alternative<message::NormTotal>(message)) return absl::OkStatus();
    if (std::holds_alternative<message::Leave>(message)) return absl::OkStatus();
    return FailedPrecondition("worker ", from.worker, " has left and must not send messages");
  }
  if (!started_ && !std::holds_alternative<message::InitialWeights>(message) &&
      !std::holds_alternative<message::Rewind>(message)) {
    return FailedPrecondition("worker ", from.worker, " sent a message before all workers have joined");
  }
  PSRING_RETURN_IF_ERROR(std::visit([&](const auto& kind) { return On(kind, from); }, message));
  if (from.completes || !from.replies.empty()) Finish(std::move(from.replies));
  return absl::OkStatus();
}

void ParameterServer::Finish(Replies replies) {
  Count(replies);  // first, because the updates are in the checkpoint
  if (checkpointing_.TakeDue()) TakeCheckpoint(/*finished=*/false);
  for (auto& [worker, reply] : replies) {
    const auto* const welcome = std::get_if<message::Welcome>(&reply.message);
    if (welcome == nullptr) {
      Deliver(worker, std::move(reply));
      continue;
    }
    const bool again = welcome->went_back;
    if (absl::Status sent = SendWelcome(worker, welcome->step, again, again); !sent.ok()) Abort(sent);
  }
}

void ParameterServer::Count(Replies& replies) {
  MutexLock lock(stats_mutex_);
  for (auto& [worker, reply] : replies) {
    if (std::holds_alternative<message::Rows>(reply.message) && !std::exchange(reply.counted, true)) {
      stats_.payload_tx_bytes += reply.weights.weights.bytes();
    }
    const auto* const answer = std::get_if<message::Answer>(&reply.message);
    if (answer == nullptr || std::exchange(reply.counted, true)) continue;
    stats_.payload_tx_bytes += shard_->bucket_bytes(answer->bucket);
    if (answer->dropped) continue;
    stats_.payload_rx_bytes += shard_->gradient_bytes(answer->bucket);
    const size_t staleness = std::min(static_cast<size_t>(answer->staleness), kMaxStaleness);
    ++stats_.pushes;
    if (stats_.staleness_histogram.size() <= staleness) stats_.staleness_histogram.resize(staleness + 1);
    ++stats_.staleness_histogram[staleness];
    ++stats_.worker_pushes[worker];
    stats_.worker_staleness_sum[worker] += answer->staleness;
  }
}

void ParameterServer::Abort(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    failed_ = true;
    changed_.NotifyAll();
  }
  for (int worker = 0; worker < options_.workers; ++worker) {
    if (const std::shared_ptr<ReplySink> sink = workers_[worker].Replace(nullptr)) sink->Abort(why);
  }
}

void ParameterServer::AbortJoining(const absl::Status& why) {
  std::string rejection;
  {
    MutexLock lock(mutex_);
    if (started_) return;
    rejection = start_.RejectionOf(members_.Absent());
  }
  Abort(absl::Status(why.code(), absl::StrCat(why.message(), rejection)));
}

std::optional<absl::Status> ParameterServer::WaitUntilOver(MonotonicTime deadline) {
  MutexLock lock(mutex_);
  while (true) {
    if (!failure_.ok()) return failure_;
    const auto [expected, left] = members_.CountExpectedAndLeft();
    // Workers of a server which was restarted after the last step only have to leave, or have left before.
    const bool idle = was_finished_ && watchdog_.silence() > kIdle;
    if (expected == 0 ? left > 0 || was_finished_ : idle && members_.Present().empty()) {
      return absl::OkStatus();
    }
    if (MonotonicNow() >= deadline) return std::nullopt;
    changed_.WaitUntil(mutex_, deadline);
  }
}

std::vector<int> ParameterServer::lost_workers() const {
  MutexLock lock(mutex_);
  return members_.Lost();
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
  if (!started_) return stats;
  stats.staging_peak_bytes = shard_->staging().peak_bytes();
  stats.answered_again = receiver_->answered_again();
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
