// A push, from its first byte to the update that it leads to: exactly once, however often it is sent.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

absl::Status ParameterServer::CheckBucket(int worker, int bucket) const {
  if (bucket >= 0 && static_cast<size_t>(bucket) < job_.buckets.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker ", worker, " names bucket ", bucket, " of ", job_.buckets.size()));
}

absl::Status ParameterServer::CheckChunk(uint64_t offset, uint64_t next_offset, size_t bytes,
                                         size_t bucket_bytes) {
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

absl::Status ParameterServer::OnWeights(int worker, const message::InitialWeights& chunk, Pieces payload) {
  Worker& state = workers_[worker];
  if (restored_) return absl::OkStatus();  // there are better ones
  if (worker != 0 || state.weights_left == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " sent initial weights that nobody asked for"));
  }
  const int bucket = chunk.bucket;
  PSRING_RETURN_IF_ERROR(CheckBucket(worker, bucket));
  if (chunk.slot != 0) return OnSlot(worker, chunk, payload);
  if (state.weights_whole[bucket]) {
    return Annotate(absl::InvalidArgumentError("initial weights that have come already"), worker, bucket);
  }
  uint64_t& received = state.weights_bytes[bucket];
  const size_t bytes = TotalBytes(payload);
  if (absl::Status status = CheckChunk(chunk.offset, received, bytes, shard_->bucket_bytes(bucket));
      !status.ok()) {
    return Annotate(status, worker, bucket);
  }
  PSRING_RETURN_IF_ERROR(shard_->SetWeights(bucket, received, payload));
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
  if (absl::Status status = CheckChunk(chunk.offset, next, TotalBytes(payload), bytes); !status.ok()) {
    return Annotate(status, worker, chunk.bucket);
  }
  return shard_->SetSlot(static_cast<int>(chunk.slot) - 1, chunk.bucket, chunk.offset, payload);
}

absl::StatusOr<Receipt> ParameterServer::OnGradient(int worker, const message::Gradient& chunk,
                                                    const ReceivedPayload& payload, Lane& lane) {
  const int bucket = chunk.bucket;
  PSRING_RETURN_IF_ERROR(CheckBucket(worker, bucket));
  if (chunk.incarnation == 0) {
    return Annotate(
        absl::InvalidArgumentError("a push that does not say for which incarnation of the server"), worker,
        bucket);
  }
  // Meant for a server that is no more, or for a sum that was emptied: its worker knows by now, or will.
  if (chunk.incarnation != incarnation_ || chunk.resets < shard_->resets(bucket)) return Receipt::kTaken;

  const size_t bytes = TotalBytes(payload.pieces);
  const size_t gradient_bytes = shard_->gradient_bytes(bucket);
  const bool whole =
      payload.stays && chunk.offset == 0 && payload.pieces.size() == 1 && bytes == gradient_bytes;
  if (payload.on_gpu && !whole) {
    return Annotate(absl::InvalidArgumentError(
                        absl::StrCat("a gradient of ", bytes, " bytes on a GPU, of ", gradient_bytes)),
                    worker, bucket);
  }
  std::shared_ptr<const void> keep;
  if (whole) {
    if (const std::shared_ptr<ReplySink> sink = SinkOf(worker)) keep = sink->Memory();
  }
  Push& push = workers_[worker].pushes[bucket];
  if (chunk.step != push.step || chunk.resets != push.resets) {
    const absl::StatusOr<Receipt> begun =
        BeginPush(worker, chunk, {.whole = whole, .on_gpu = payload.on_gpu, .stays = keep != nullptr});
    if (!begun.ok()) return Annotate(begun.status(), worker, bucket);
    if (*begun == Receipt::kNotYet) return Receipt::kNotYet;
  }
  const bool last = chunk.offset + bytes == gradient_bytes;
  if (push.whole) {
    if (!last) return Receipt::kTaken;
    return OnRepeat(worker, bucket, /*in_place=*/payload.stays, lane);
  }
  if (chunk.samples != push.samples) {
    return Annotate(absl::InvalidArgumentError(
                        absl::StrCat(chunk.samples, " samples in the middle of a push of ", push.samples)),
                    worker, bucket);
  }
  if (chunk.offset < push.high_water && !whole) return Receipt::kTaken;  // has come before
  if (!whole) {
    if (absl::Status status = CheckChunk(chunk.offset, push.high_water, bytes, gradient_bytes);
        !status.ok()) {
      return Annotate(status, worker, bucket);
    }
  } else if (push.high_water > 0) {
    return Annotate(absl::InvalidArgumentError("a whole gradient in the middle of one in chunks"), worker,
                    bucket);
  }
  const absl::StatusOr<ParameterShard::Added> taken =
      whole ? shard_->AddWhole(worker, bucket,
                               {.gradient = payload.pieces.front(), .on_gpu = payload.on_gpu, .keep = keep},
                               lane, push.resets)
            : shard_->AddChunk(worker, bucket, push.high_water, payload.pieces, push.resets);
  if (!taken.ok()) {  // the device has failed: no fault of this worker
    Abort(taken.status());
    return Receipt::kTaken;
  }
  const ParameterShard::Added& added = *taken;
  if (!added.added) return Receipt::kTaken;  // reset meanwhile
  // Also of what is refused: part of it may stand in the sum, which then is reset with its worker's loss.
  push.high_water += bytes;
  if (added.not_finite.has_value()) {
    return Annotate(
        absl::InvalidArgumentError(absl::StrCat(
            "the gradient of step ", chunk.step, " is NaN or infinite at element ",
            chunk.offset / SizeOf(job_.wire) + *added.not_finite,
            ", and is refused: training has diverged (a lower --lr may help), or the worker is broken; "
            "--debug.reject_nonfinite=false accepts it")),
        worker, bucket);
  }
  if (push.high_water == gradient_bytes) PSRING_RETURN_IF_ERROR(OnPushComplete(worker, bucket, lane));
  return Receipt::kTaken;
}

absl::StatusOr<Receipt> ParameterServer::BeginPush(int worker, const message::Gradient& chunk,
                                                   const PushManner& manner) {
  bool repeated = false;
  PSRING_RETURN_IF_ERROR(MayBegin(worker, chunk, repeated));
  Push& push = workers_[worker].pushes[chunk.bucket];
  if (repeated) {
    push = {.step = chunk.step, .resets = chunk.resets, .whole = true};
    return Receipt::kTaken;
  }
  PSRING_ASSIGN_OR_RETURN(const bool begun, shard_->BeginPush(worker, chunk.bucket, chunk.step, manner));
  if (!begun) return Receipt::kNotYet;
  push = {.step = chunk.step, .resets = chunk.resets, .samples = chunk.samples};
  return Receipt::kTaken;
}

absl::Status ParameterServer::MayBegin(int worker, const message::Gradient& chunk, bool& repeated) {
  const int bucket = chunk.bucket;
  const Push& push = workers_[worker].pushes[bucket];
  if (chunk.samples < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a push of ", chunk.samples, " samples"));
  }
  // Whoever takes up memory must not have to wait for more (parameter_shard.h).
  for (size_t other = 0; other < workers_[worker].pushes.size(); ++other) {
    const Push& begun = workers_[worker].pushes[other];
    if (begun.step < 0 || begun.whole || static_cast<int>(other) == bucket) continue;
    if (!shard_->is_staged(worker, static_cast<int>(other))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a push in the middle of that of bucket ", other, " of step ", begun.step));
  }
  BucketState& state = buckets_[bucket];
  MutexLock lock(state.mutex);
  if (push.step >= 0 && !push.whole && push.resets == shard_->resets(bucket) && push.step != chunk.step) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", chunk.step, " in the middle of the push of step ", push.step));
  }
  if (chunk.resets != shard_->resets(bucket)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a push for the sum after ", chunk.resets, " resets of ", shard_->resets(bucket)));
  }
  // Only a stream that broke, or a server that came back, makes a worker send what is here already.
  repeated = push.step < 0 && state.consistency->IsRepeat(worker, chunk.step);
  if (repeated) return absl::OkStatus();
  if (state.may_skip[worker]) {
    state.may_skip[worker] = false;
    const int64_t lost = SkipTo(*state.consistency, worker, chunk.step);
    MutexLock worker_lock(workers_[worker].mutex);
    workers_[worker].pushes_complete += lost;
    MutexLock stats_lock(stats_mutex_);
    stats_.lost_updates += lost;
  }
  return state.consistency->MayPush(worker, chunk.step);
}

absl::Status ParameterServer::OnPushComplete(int worker, int bucket, Lane& lane) {
  Push& push = workers_[worker].pushes[bucket];
  Replies replies;
  {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    if (push.resets != shard_->resets(bucket)) return absl::OkStatus();
    push.whole = true;
    const Consistency::Decision decision = state.consistency->OnPush(worker, push.step);
    if (decision.accept) {
      state.pending[worker] = {.state = Pending::State::kPushed, .step = push.step, .samples = push.samples};
    }
    const absl::Status status = Act(bucket, decision, lane, replies);
    shard_->EndAnswers(bucket);
    if (!status.ok()) return Annotate(status, worker, bucket);
  }
  PSRING_RETURN_IF_ERROR(OnceAllAreReduced(lane, replies));
  // Serial: what this worker's earlier buckets have led to may go out with the last bucket of the step.
  std::vector<Reply> released;
  {
    MutexLock lock(workers_[worker].mutex);
    if (++workers_[worker].pushes_complete % static_cast<int64_t>(job_.buckets.size()) == 0) {
      released.swap(workers_[worker].held);
      shard_->EndStep(worker);
    }
  }
  for (Reply& reply : released) replies.emplace_back(worker, std::move(reply));
  Finish(std::move(replies));
  return absl::OkStatus();
}

// The answer was lost on the way, or is still to come.
absl::StatusOr<Receipt> ParameterServer::OnRepeat(int worker, int bucket, bool in_place, Lane& lane) {
  Push& push = workers_[worker].pushes[bucket];
  BucketState& state = buckets_[bucket];
  {
    MutexLock lock(state.mutex);
    if (state.pending[worker].state != Pending::State::kNone) return Receipt::kTaken;
  }
  if (push.answered_again) {
    return Annotate(absl::FailedPreconditionError(absl::StrCat(
                        "step ", push.step, " came once more, and has been answered again already")),
                    worker, bucket);
  }
  if (!shard_->BeginRepeat(worker, bucket, in_place)) return Receipt::kNotYet;
  push.answered_again = true;
  Replies replies;
  {
    MutexLock lock(state.mutex);
    state.pending[worker] = {.state = Pending::State::kRepeated, .step = push.step};
    {
      MutexLock stats_lock(stats_mutex_);
      ++stats_.answered_again;
    }
    const Consistency::Decision decision = state.consistency->OnRepeat(worker, push.step);
    shard_->UseRepeat(worker, bucket);
    const absl::Status status = Act(bucket, decision, lane, replies);
    shard_->EndAnswers(bucket);
    if (!status.ok()) return Annotate(status, worker, bucket);
  }
  Finish(std::move(replies));
  return Receipt::kTaken;
}

}  // namespace psring
