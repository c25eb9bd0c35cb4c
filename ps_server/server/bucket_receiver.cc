#include "ps_server/server/bucket_receiver.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "ps_server/server/membership.h"

namespace psring {
namespace {

absl::Status CheckChunk(uint64_t offset, uint64_t next_offset, size_t bytes, size_t bucket_bytes) {
  if (offset != next_offset) {
    return InvalidArgument("a chunk begins at byte ", offset, ", not at ", next_offset);
  }
  if (bytes != ChunkLength(bucket_bytes, next_offset)) {
    return InvalidArgument("the chunk at byte ", next_offset, " of ", bucket_bytes, " has ", bytes,
                           " bytes, not ", ChunkLength(bucket_bytes, next_offset));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BucketReceiver::CheckBucket(int worker, int bucket) const {
  if (bucket >= 0 && bucket < bucket_count()) return absl::OkStatus();
  return InvalidArgument("worker ", worker, " names bucket ", bucket, " of ", bucket_count());
}

absl::Status BucketReceiver::OnWeights(const message::InitialWeights& chunk, Pieces payload) {
  const int bucket = chunk.bucket;
  PSRING_RETURN_IF_ERROR(CheckBucket(0, bucket));
  const size_t bytes = TotalBytes(payload), bucket_bytes = parts_.shard.bucket_bytes(bucket);
  if (chunk.slot < 0 || chunk.slot > parts_.shard.slots()) {
    return InvalidArgument("worker 0 sent slot ", chunk.slot, " of an optimizer that has ",
                           parts_.shard.slots());
  }
  Weights& weights = weights_[bucket];
  if (chunk.slot == 0 && weights.whole) {
    return AtBucket(InvalidArgument("initial weights that have arrived already"), 0, bucket);
  }
  uint64_t next = weights.bytes;
  if (chunk.slot != 0) {
    next = chunk.offset <= bucket_bytes && chunk.offset % kChunkBytes == 0 ? chunk.offset : 0;
  }
  PSRING_RETURN_IF_ERROR(AtBucket(CheckChunk(chunk.offset, next, bytes, bucket_bytes), 0, bucket));
  PSRING_RETURN_IF_ERROR(parts_.shard.SetValues(static_cast<int>(chunk.slot), bucket, next, payload));
  if (chunk.slot != 0) return absl::OkStatus();
  weights.bytes += bytes;
  weights.whole = weights.bytes == bucket_bytes;
  if (weights.whole) --weights_left_;
  return absl::OkStatus();
}

absl::StatusOr<BucketReceiver::Received> BucketReceiver::OnGradient(int worker,
                                                                    const message::Gradient& chunk,
                                                                    const ReceivedPayload& payload,
                                                                    Lane& lane, Replies& replies) {
  PSRING_RETURN_IF_ERROR(CheckBucket(worker, chunk.bucket));
  const absl::StatusOr<Added> added = Add(worker, chunk, payload, lane);
  if (!added.ok()) return AtBucket(added.status(), worker, chunk.bucket);
  if (*added == Added::kComplete) return OnComplete(worker, chunk.bucket, lane, replies);
  if (*added == Added::kRepeat) return OnRepeat(worker, chunk.bucket, payload.stays, lane, replies);
  return Received{.receipt = *added == Added::kNotYet ? Receipt::kNotYet : Receipt::kTaken};
}

absl::StatusOr<BucketReceiver::Added> BucketReceiver::Add(int worker, const message::Gradient& chunk,
                                                          const ReceivedPayload& payload, Lane& lane) {
  const int bucket = chunk.bucket;
  if (chunk.incarnation == 0) return InvalidArgument("a push without the incarnation of the server");
  // For an earlier incarnation, or for a sum that was emptied; the worker is notified in both cases.
  if (chunk.incarnation != parts_.incarnation || chunk.resets < parts_.shard.resets(bucket))
    return Added::kPart;

  const size_t bytes = TotalBytes(payload.pieces);
  const size_t gradient_bytes = parts_.shard.gradient_bytes(bucket);
  std::optional<WholeGradient> whole;
  if (payload.stays && chunk.offset == 0 && payload.pieces.size() == 1 && bytes == gradient_bytes) {
    whole = {.gradient = payload.pieces.front(), .on_gpu = payload.on_gpu};
    if (const std::shared_ptr<ReplySink> sink = parts_.workers[worker].Sink()) whole->keep = sink->Memory();
  }
  if (payload.on_gpu && !whole.has_value()) {
    return InvalidArgument("a gradient of ", bytes, " bytes on a GPU, of ", gradient_bytes);
  }
  Push& push = parts_.workers[worker].pushes[bucket];
  if (chunk.step != push.step || chunk.resets != push.resets) {
    PSRING_ASSIGN_OR_RETURN(const Receipt begun,
                            BeginPush(worker, chunk, whole.has_value() ? &*whole : nullptr));
    if (begun == Receipt::kNotYet) return Added::kNotYet;
  }
  if (push.whole) return chunk.offset + bytes == gradient_bytes ? Added::kRepeat : Added::kPart;
  if (chunk.samples != push.samples) {
    return InvalidArgument(chunk.samples, " samples in the middle of a push of ", push.samples);
  }
  if (chunk.offset < push.high_water && !whole.has_value()) return Added::kPart;  // arrived before
  if (!whole.has_value()) {
    PSRING_RETURN_IF_ERROR(CheckChunk(chunk.offset, push.high_water, bytes, gradient_bytes));
  } else if (push.high_water > 0) {
    return InvalidArgument("a whole gradient in the middle of one in chunks");
  }
  const absl::StatusOr<ParameterShard::Added> taken =
      whole.has_value() ? parts_.shard.AddWhole(worker, bucket, *whole, lane, push.resets)
                        : parts_.shard.AddChunk(worker, bucket, push.high_water, payload.pieces, push.resets);
  if (!taken.ok()) {
    parts_.on_device_error(taken.status());
    return Added::kPart;
  }
  if (!taken->added) return Added::kPart;  // reset meanwhile
  // Also for a refused chunk: part of it may be in the sum, which is reset when the worker is lost.
  push.high_water += bytes;
  if (taken->not_finite.has_value()) {
    return InvalidArgument("the gradient of step ", chunk.step, " is NaN or infinite at element ",
                           chunk.offset / SizeOf(parts_.job.wire) + *taken->not_finite,
                           ": training has diverged (a lower --lr may help), or the worker is faulty; "
                           "--debug.reject_nonfinite=false accepts it");
  }
  return push.high_water == gradient_bytes ? Added::kComplete : Added::kPart;
}

absl::StatusOr<Receipt> BucketReceiver::BeginPush(int worker, const message::Gradient& chunk,
                                                  const WholeGradient* whole) {
  if (chunk.samples < 0) return InvalidArgument("a push of ", chunk.samples, " samples");
  std::vector<Push>& pushes = parts_.workers[worker].pushes;
  // A worker that uses staging memory must not have to wait for more (parameter_shard.h).
  for (const int other : PartlyStaged(worker)) {
    if (other == chunk.bucket) continue;
    return InvalidArgument("a push in the middle of that of bucket ", other, " of step ", pushes[other].step);
  }
  parts_.workers[worker].rewound = false;
  PSRING_ASSIGN_OR_RETURN(const bool repeated, parts_.rounds.MayBegin(worker, chunk));
  if (!repeated) {
    PSRING_ASSIGN_OR_RETURN(const bool begun,
                            parts_.shard.BeginPush(worker, chunk.bucket, chunk.step, whole));
    if (!begun) return Receipt::kNotYet;
  }
  pushes[chunk.bucket] = {
      .step = chunk.step, .resets = chunk.resets, .samples = chunk.samples, .whole = repeated};
  return Receipt::kTaken;
}

absl::StatusOr<BucketReceiver::Received> BucketReceiver::OnComplete(int worker, int bucket, Lane& lane,
                                                                    Replies& replies) {
  Replies answers;
  PSRING_RETURN_IF_ERROR(parts_.rounds.OnPush(worker, bucket, lane, answers));
  WorkerStream& stream = parts_.workers[worker];
  if (!stream.pushes[bucket].whole) return Received{};  // reset meanwhile
  {
    MutexLock lock(stream.mutex);
    if (++stream.pushes_complete % bucket_count() == 0) {
      // Serial and asynchronous: the answers for this worker's earlier buckets are sent after the last bucket
      // of the step, in the order of buckets.
      if (parts_.each_alone) {
        for (Reply& reply : std::exchange(stream.held, {})) replies.emplace_back(worker, std::move(reply));
      }
      parts_.shard.EndStep(worker);
    }
  }
  std::ranges::move(answers, std::back_inserter(replies));
  return Received{.complete = true};
}

// The answer was lost, or has not been sent yet.
absl::StatusOr<BucketReceiver::Received> BucketReceiver::OnRepeat(int worker, int bucket, bool in_place,
                                                                  Lane& lane, Replies& replies) {
  Push& push = parts_.workers[worker].pushes[bucket];
  if (parts_.rounds.IsUnanswered(worker, bucket, push.step)) return Received{};
  if (push.answered_again) {
    return AtBucket(
        FailedPrecondition("step ", push.step, " was repeated, and has been answered again already"), worker,
        bucket);
  }
  if (!parts_.shard.BeginRepeat(worker, bucket, in_place)) return Received{.receipt = Receipt::kNotYet};
  push.answered_again = true;
  ++answered_again_;
  PSRING_RETURN_IF_ERROR(parts_.rounds.OnPush(worker, bucket, lane, replies));
  return Received{};
}

std::vector<int> BucketReceiver::PartlyStaged(int worker) const {
  std::vector<int> buckets;
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    const Push& push = parts_.workers[worker].pushes[bucket];
    if (push.step >= 0 && !push.whole && parts_.shard.is_staged(worker, bucket)) buckets.push_back(bucket);
  }
  return buckets;
}

void BucketReceiver::DropStaged(int worker) {
  for (const int bucket : PartlyStaged(worker)) {
    parts_.shard.DropPush(worker, bucket);
    parts_.workers[worker].pushes[bucket].step = -1;
  }
  parts_.shard.EndStep(worker);
  parts_.shard.staging().LeaveQueue(worker);
}

BucketRounds::Missing BucketReceiver::HoldsMemory() {
  const StagingPool& staging = parts_.shard.staging();
  const std::vector<int> queued = staging.queued();
  if (queued.empty()) return {};
  std::vector<int> senders;
  for (int worker = 0; worker < parts_.job.workers; ++worker) {
    MutexLock lock(parts_.workers[worker].receive);
    if (!PartlyStaged(worker).empty()) senders.push_back(worker);
  }
  const std::vector<int> readers = staging.readers();
  std::vector<std::string> what;
  if (!senders.empty()) what.push_back(absl::StrCat(WorkersText(senders), " to send the rest of a push"));
  if (!readers.empty()) what.push_back(absl::StrCat(WorkersText(readers), " to read weights"));
  if (what.empty()) return {};  // the others get it now
  BucketRounds::Missing missing{
      senders, absl::StrCat(absl::StrJoin(what, ", and "), ", so that there is memory for the pushes of ",
                            WorkersText(queued))};
  std::ranges::copy_if(readers, std::back_inserter(missing.workers),
                       [&](int reader) { return std::ranges::count(senders, reader) == 0; });
  return missing;
}

}  // namespace psring
