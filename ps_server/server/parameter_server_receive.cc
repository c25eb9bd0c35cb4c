// What workers send, and the replies: dispatch, initial weights, gradients. Each push is applied exactly
// once, however often it is sent.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/server/parameter_server.h"

namespace psring {
namespace {

absl::Status CheckChunk(uint64_t offset, uint64_t next_offset, size_t bytes, size_t bucket_bytes) {
  if (offset != next_offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk begins at byte ", offset, ", not at ", next_offset));
  }
  if (bytes != ChunkLength(bucket_bytes, next_offset)) {
    return absl::InvalidArgumentError(absl::StrCat("the chunk at byte ", next_offset, " of ", bucket_bytes,
                                                   " has ", bytes, " bytes, not ",
                                                   ChunkLength(bucket_bytes, next_offset)));
  }
  return absl::OkStatus();
}

// Serial and synchronous: holds the answer until there is one for every bucket of its step. A bucket is
// answered after its update, so by then all buckets are updated and all gradients of the step have arrived.
// Returns what may be sent.
std::vector<Reply> HoldUntilStepIsComplete(WorkerStream& stream, size_t buckets, Reply reply)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(stream.mutex) {
  const message::Answer answer = std::get<message::Answer>(reply.message);
  std::vector<Reply> released;
  if (answer.dropped || answer.step < stream.steps_answered) {
    released.push_back(std::move(reply));
    return released;
  }
  const auto same = std::ranges::find_if(stream.held, [&](const Reply& held) {
    return std::get<message::Answer>(held.message).bucket == answer.bucket;
  });
  if (same == stream.held.end()) {
    stream.held.push_back(std::move(reply));
  } else {  // the worker's stream broke, and it repeated its push
    *same = std::move(reply);
  }
  if (stream.held.size() < buckets) return released;
  stream.steps_answered = answer.step + 1;
  released.swap(stream.held);
  return released;
}

}  // namespace

Receipt ParameterServer::Receive(int worker, const ReplySink* sink, const message::ToServer& message,
                                 const ReceivedPayload& payload, Lane& lane) {
  if (failed_) return Receipt::kTaken;
  last_arrival_ns_ = MonotonicNanos();
  absl::StatusOr<Receipt> receipt = Receipt::kTaken;
  {
    MutexLock receive_lock(workers_[worker].receive);
    // The worker has another stream by now, or is no longer in the job.
    if (workers_[worker].Sink().get() != sink) return Receipt::kTaken;
    receipt = Dispatch(worker, message, payload, lane);
  }
  if (receipt.ok()) return *receipt;
  TurnAway(worker, sink, receipt.status());
  return Receipt::kTaken;
}

absl::StatusOr<Receipt> ParameterServer::Dispatch(int worker, const message::ToServer& message,
                                                  const ReceivedPayload& payload, Lane& lane) {
  const auto taken = [](const absl::Status& status) {
    return status.ok() ? absl::StatusOr<Receipt>(Receipt::kTaken) : status;
  };
  if (workers_[worker].left) {
    // The total of a step's norm may arrive after the step is complete.
    if (std::holds_alternative<message::NormTotal>(message)) return Receipt::kTaken;
    if (std::holds_alternative<message::Leave>(message)) return Receipt::kTaken;
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " has left and must not send messages"));
  }
  if (const auto* weights = std::get_if<message::InitialWeights>(&message)) {
    return taken(OnWeights(worker, *weights, payload.pieces));
  }
  if (const auto* rewind = std::get_if<message::Rewind>(&message))
    return taken(OnRewind(worker, *rewind, lane));
  if (!started_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " sent a message before all workers have joined"));
  }
  if (const auto* chunk = std::get_if<message::Gradient>(&message)) {
    return OnGradient(worker, *chunk, payload, lane);
  }
  if (const auto* pull = std::get_if<message::PullRows>(&message)) {
    return taken(OnPullRows(worker, *pull, payload.pieces));
  }
  if (const auto* push = std::get_if<message::PushRows>(&message)) {
    return taken(OnPushRows(worker, *push, payload.pieces));
  }
  if (const auto* initial = std::get_if<message::InitialRows>(&message)) {
    return taken(OnInitialRows(worker, *initial, payload.pieces));
  }
  if (const auto* fetch = std::get_if<message::Fetch>(&message)) return taken(OnFetch(worker, *fetch));
  if (std::holds_alternative<message::Leave>(message)) return taken(OnLeave(worker, lane));
  if (const auto* announcement = std::get_if<message::Announcement>(&message)) {
    return taken(OnAnnounce(worker, *announcement, lane));
  }
  if (const auto* total = std::get_if<message::NormTotal>(&message)) {
    Replies replies;
    PSRING_RETURN_IF_ERROR(rounds_->OnNormTotal(*total, lane, replies));
    Finish(std::move(replies));
    return Receipt::kTaken;
  }
  if (const auto* barrier = std::get_if<message::Barrier>(&message)) {
    return taken(OnBarrier(worker, barrier->number));
  }
  return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " sent a second Join"));
}

absl::Status ParameterServer::CheckBucket(int worker, int bucket) const {
  if (bucket >= 0 && static_cast<size_t>(bucket) < job_.buckets.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker ", worker, " names bucket ", bucket, " of ", job_.buckets.size()));
}

absl::Status ParameterServer::OnPullRows(int worker, const message::PullRows& pull, Pieces payload) {
  if (rows_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " pulls rows in a job without tables"));
  }
  Replies replies;
  PSRING_RETURN_IF_ERROR(rows_->OnPull(worker, pull, payload, replies));
  CountReceived(payload);
  Finish(std::move(replies));
  return absl::OkStatus();
}

absl::Status ParameterServer::OnPushRows(int worker, const message::PushRows& push, Pieces payload) {
  if (rows_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, " pushes rows in a job without tables"));
  }
  Replies replies;
  PSRING_RETURN_IF_ERROR(rows_->OnPush(worker, push, payload, replies));
  CountReceived(payload);
  Finish(std::move(replies));
  return absl::OkStatus();
}

absl::Status ParameterServer::OnInitialRows(int worker, const message::InitialRows& initial, Pieces payload) {
  if (rows_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " sends rows in a job without tables"));
  }
  Replies replies;
  PSRING_RETURN_IF_ERROR(rows_->OnInitial(worker, initial, payload, replies));
  Finish(std::move(replies));
  return absl::OkStatus();
}

// Rows and their numbers.
void ParameterServer::CountReceived(Pieces payload) {
  MutexLock stats_lock(stats_mutex_);
  stats_.payload.payload_rx_bytes += TotalBytes(payload);
}

absl::Status ParameterServer::OnWeights(int worker, const message::InitialWeights& chunk, Pieces payload) {
  WorkerStream& state = workers_[worker];
  if (restored_) return absl::OkStatus();  // the checkpoint's are newer
  if (worker != 0 || state.weights_left == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " sent initial weights that were not requested"));
  }
  const int bucket = chunk.bucket;
  PSRING_RETURN_IF_ERROR(CheckBucket(worker, bucket));
  if (chunk.slot != 0) return OnSlot(worker, chunk, payload);
  if (state.weights_whole[bucket]) {
    return AtBucket(absl::InvalidArgumentError("initial weights that have arrived already"), worker, bucket);
  }
  uint64_t& received = state.weights_bytes[bucket];
  const size_t bytes = TotalBytes(payload);
  PSRING_RETURN_IF_ERROR(
      AtBucket(CheckChunk(chunk.offset, received, bytes, shard_->bucket_bytes(bucket)), worker, bucket));
  PSRING_RETURN_IF_ERROR(shard_->SetValues(0, bucket, received, payload));
  received += bytes;
  if (received < shard_->bucket_bytes(bucket)) return absl::OkStatus();
  state.weights_whole[bucket] = true;
  if (--state.weights_left > 0) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    weights_arrived_ = true;
  }
  return StartOnceComplete();
}

absl::Status ParameterServer::OnSlot(int worker, const message::InitialWeights& chunk, Pieces payload) {
  const size_t bytes = shard_->bucket_bytes(chunk.bucket);
  if (chunk.slot < 0 || chunk.slot > shard_->slots()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " sent slot ", chunk.slot,
                                                   " of an optimizer that has ", shard_->slots()));
  }
  const uint64_t next = chunk.offset <= bytes && chunk.offset % kChunkBytes == 0 ? chunk.offset : 0;
  PSRING_RETURN_IF_ERROR(
      AtBucket(CheckChunk(chunk.offset, next, TotalBytes(payload), bytes), worker, chunk.bucket));
  return shard_->SetValues(static_cast<int>(chunk.slot), chunk.bucket, chunk.offset, payload);
}

absl::StatusOr<Receipt> ParameterServer::OnGradient(int worker, const message::Gradient& chunk,
                                                    const ReceivedPayload& payload, Lane& lane) {
  const int bucket = chunk.bucket;
  PSRING_RETURN_IF_ERROR(CheckBucket(worker, bucket));
  if (chunk.incarnation == 0) {
    return AtBucket(absl::InvalidArgumentError("a push without the incarnation of the server"), worker,
                    bucket);
  }
  // For an earlier incarnation, or for a sum that was emptied; the worker is notified in both cases.
  if (chunk.incarnation != incarnation_ || chunk.resets < shard_->resets(bucket)) return Receipt::kTaken;

  const size_t bytes = TotalBytes(payload.pieces);
  const size_t gradient_bytes = shard_->gradient_bytes(bucket);
  const bool whole =
      payload.stays && chunk.offset == 0 && payload.pieces.size() == 1 && bytes == gradient_bytes;
  if (payload.on_gpu && !whole) {
    return AtBucket(absl::InvalidArgumentError(
                        absl::StrCat("a gradient of ", bytes, " bytes on a GPU, of ", gradient_bytes)),
                    worker, bucket);
  }
  std::shared_ptr<const void> keep;
  if (whole) {
    if (const std::shared_ptr<ReplySink> sink = workers_[worker].Sink()) keep = sink->Memory();
  }
  Push& push = workers_[worker].pushes[bucket];
  if (chunk.step != push.step || chunk.resets != push.resets) {
    const absl::StatusOr<Receipt> begun =
        BeginPush(worker, chunk, {.whole = whole, .on_gpu = payload.on_gpu, .stays = keep != nullptr});
    if (!begun.ok()) return AtBucket(begun.status(), worker, bucket);
    if (*begun == Receipt::kNotYet) return Receipt::kNotYet;
  }
  const bool last = chunk.offset + bytes == gradient_bytes;
  if (push.whole) {
    if (!last) return Receipt::kTaken;
    return OnRepeat(worker, bucket, /*in_place=*/payload.stays, lane);
  }
  if (chunk.samples != push.samples) {
    return AtBucket(absl::InvalidArgumentError(
                        absl::StrCat(chunk.samples, " samples in the middle of a push of ", push.samples)),
                    worker, bucket);
  }
  if (chunk.offset < push.high_water && !whole) return Receipt::kTaken;  // arrived before
  if (!whole) {
    PSRING_RETURN_IF_ERROR(
        AtBucket(CheckChunk(chunk.offset, push.high_water, bytes, gradient_bytes), worker, bucket));
  } else if (push.high_water > 0) {
    return AtBucket(absl::InvalidArgumentError("a whole gradient in the middle of one in chunks"), worker,
                    bucket);
  }
  const absl::StatusOr<ParameterShard::Added> taken =
      whole ? shard_->AddWhole(worker, bucket,
                               {.gradient = payload.pieces.front(), .on_gpu = payload.on_gpu, .keep = keep},
                               lane, push.resets)
            : shard_->AddChunk(worker, bucket, push.high_water, payload.pieces, push.resets);
  if (!taken.ok()) {  // the device has failed, not the worker
    Abort(taken.status());
    return Receipt::kTaken;
  }
  const ParameterShard::Added& added = *taken;
  if (!added.added) return Receipt::kTaken;  // reset meanwhile
  // Also for a refused chunk: part of it may be in the sum, which is reset when the worker is lost.
  push.high_water += bytes;
  if (added.not_finite.has_value()) {
    return AtBucket(absl::InvalidArgumentError(absl::StrCat(
                        "the gradient of step ", chunk.step, " is NaN or infinite at element ",
                        chunk.offset / SizeOf(job_.wire) + *added.not_finite,
                        ": training has diverged (a lower --lr may help), or the worker is faulty; "
                        "--debug.reject_nonfinite=false accepts it")),
                    worker, bucket);
  }
  if (push.high_water == gradient_bytes) PSRING_RETURN_IF_ERROR(OnPushComplete(worker, bucket, lane));
  return Receipt::kTaken;
}

absl::StatusOr<Receipt> ParameterServer::BeginPush(int worker, const message::Gradient& chunk,
                                                   const PushManner& manner) {
  if (chunk.samples < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a push of ", chunk.samples, " samples"));
  }
  std::vector<Push>& pushes = workers_[worker].pushes;
  // A worker that uses staging memory must not have to wait for more (parameter_shard.h).
  for (size_t other = 0; other < pushes.size(); ++other) {
    const Push& begun = pushes[other];
    if (begun.step < 0 || begun.whole || static_cast<int>(other) == chunk.bucket) continue;
    if (!shard_->is_staged(worker, static_cast<int>(other))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a push in the middle of that of bucket ", other, " of step ", begun.step));
  }
  workers_[worker].rewound = false;
  PSRING_ASSIGN_OR_RETURN(const bool repeated, rounds_->MayBegin(worker, chunk));
  Push& push = pushes[static_cast<size_t>(chunk.bucket)];
  if (repeated) {
    push = {.step = chunk.step, .resets = chunk.resets, .whole = true};
    return Receipt::kTaken;
  }
  PSRING_ASSIGN_OR_RETURN(const bool begun, shard_->BeginPush(worker, chunk.bucket, chunk.step, manner));
  if (!begun) return Receipt::kNotYet;
  push = {.step = chunk.step, .resets = chunk.resets, .samples = chunk.samples};
  return Receipt::kTaken;
}

absl::Status ParameterServer::OnPushComplete(int worker, int bucket, Lane& lane) {
  Replies replies;
  PSRING_RETURN_IF_ERROR(rounds_->OnPush(worker, bucket, lane, replies));
  WorkerStream& stream = workers_[worker];
  if (!stream.pushes[static_cast<size_t>(bucket)].whole) return absl::OkStatus();  // reset meanwhile
  if (finished_) finished_ = false;  // the worker repeats what another server has lost
  // Serial and asynchronous: the answers for this worker's earlier buckets are sent after the last bucket of
  // the step.
  std::vector<Reply> released;
  {
    MutexLock lock(stream.mutex);
    if (++stream.pushes_complete % static_cast<int64_t>(job_.buckets.size()) == 0) {
      if (rule_.each_alone()) released.swap(stream.held);
      shard_->EndStep(worker);
    }
  }
  Replies in_order;  // of buckets
  for (Reply& reply : released) in_order.emplace_back(worker, std::move(reply));
  std::ranges::move(replies, std::back_inserter(in_order));
  Finish(std::move(in_order));
  return absl::OkStatus();
}

// The answer was lost, or has not been sent yet.
absl::StatusOr<Receipt> ParameterServer::OnRepeat(int worker, int bucket, bool in_place, Lane& lane) {
  Push& push = workers_[worker].pushes[static_cast<size_t>(bucket)];
  if (rounds_->IsUnanswered(worker, bucket, push.step)) return Receipt::kTaken;
  if (push.answered_again) {
    return AtBucket(absl::FailedPreconditionError(absl::StrCat(
                        "step ", push.step, " was repeated, and has been answered again already")),
                    worker, bucket);
  }
  if (!shard_->BeginRepeat(worker, bucket, in_place)) return Receipt::kNotYet;
  push.answered_again = true;
  {
    MutexLock stats_lock(stats_mutex_);
    ++stats_.answered_again;
  }
  Replies replies;
  PSRING_RETURN_IF_ERROR(rounds_->OnRepeat(worker, bucket, lane, replies));
  Finish(std::move(replies));
  return Receipt::kTaken;
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
    bool again = false;
    {
      MutexLock lock(workers_[worker].mutex);
      again = workers_[worker].joins_again;
    }
    const absl::Status sent = SendWelcome(worker, welcome->step, again, /*went_back=*/again);
    if (!sent.ok()) Abort(sent);
  }
}

void ParameterServer::Deliver(int worker, Reply reply) {
  const auto* const answer = std::get_if<message::Answer>(&reply.message);
  if (answer == nullptr || !job_.serial) return Send(worker, std::move(reply));
  std::vector<Reply> released;
  {
    WorkerStream& stream = workers_[worker];
    MutexLock lock(stream.mutex);
    const size_t buckets = job_.buckets.size();
    if (!rule_.each_alone()) {
      released = HoldUntilStepIsComplete(stream, buckets, std::move(reply));
    } else if (answer->step >= stream.pushes_complete / static_cast<int64_t>(buckets)) {
      stream.held.push_back(std::move(reply));
    } else {
      released.push_back(std::move(reply));
    }
  }
  for (Reply& one : released) Send(worker, std::move(one));
}

void ParameterServer::Send(int worker, Reply reply) {
  const std::shared_ptr<ReplySink> sink = workers_[worker].Sink();
  if (std::exchange(reply.begun_on, nullptr) != sink) {
    // The worker's stream broke meanwhile. It will repeat what is not answered.
    if (reply.in_place) return;
    reply.from = 0;
  }
  if (sink != nullptr) sink->Deliver(std::move(reply));
}

void ParameterServer::Count(Replies& replies) {
  MutexLock lock(stats_mutex_);
  for (auto& [worker, reply] : replies) {
    if (std::holds_alternative<message::Rows>(reply.message) && !std::exchange(reply.counted, true)) {
      stats_.payload.payload_tx_bytes += reply.weights.weights.bytes();
    }
    const auto* const answer = std::get_if<message::Answer>(&reply.message);
    if (answer == nullptr || std::exchange(reply.counted, true)) continue;
    stats_.payload.payload_tx_bytes += shard_->bucket_bytes(answer->bucket);
    if (answer->dropped) continue;
    stats_.payload.payload_rx_bytes += shard_->gradient_bytes(answer->bucket);
    const size_t staleness = std::min(static_cast<size_t>(answer->staleness), kMostStaleness);
    ++stats_.pushes;
    if (stats_.staleness_histogram.size() <= staleness) stats_.staleness_histogram.resize(staleness + 1);
    ++stats_.staleness_histogram[staleness];
    ++stats_.worker_pushes[worker];
    stats_.worker_staleness_sum[worker] += answer->staleness;
  }
}

}  // namespace psring
