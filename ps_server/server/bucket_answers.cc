// How a bucket's weights reach the workers that may read them; and the buckets' part of checkpoints.
#include <utility>

#include "common/base/check.h"
#include "ps_server/server/bucket_rounds.h"

namespace psring {

// Updates in host memory: a worker that shares memory gets the weights there as they are computed. Other
// workers get them in parts, unless they are sent from a copy (parameter_shard.h) or held back.
absl::StatusOr<BucketRounds::BegunAnswers> BucketRounds::BeginAnswers(int bucket,
                                                                      const std::vector<int>& readers) {
  BegunAnswers begun;
  if (!shard_.on_host()) return begun;
  for (const int reader : readers) {
    if (buckets_[bucket].pending[reader].state != Pending::State::kApplied) continue;
    const std::shared_ptr<ReplySink> sink = workers_[reader].Sink();
    if (sink == nullptr) continue;
    const ReplySink::Place place = sink->PlaceOf(bucket, shard_.bucket_bytes(bucket));
    message::Answer answer = AnswerMessage(reader, bucket);
    Reply reply{.begun_on = sink};
    if (place.data != nullptr && !place.on_gpu) {
      begun.places.push_back(place.data);
      reply.in_place = true;
      answer.shared = message::SharedPlaces{.bytes = shard_.bucket_bytes(bucket)};
    } else if (sink->TakesParts() && !shard_.sends_copies() && !job_.serial) {
      PSRING_ASSIGN_OR_RETURN(reply.weights, shard_.Read(bucket));
    } else {
      continue;
    }
    reply.message = answer;
    begun.replies.emplace(reader, std::move(reply));
  }
  return begun;
}

message::Answer BucketRounds::AnswerMessage(int worker, int bucket) const {
  const Pending& pending = buckets_[bucket].pending[worker];
  const bool dropped = pending.state == Pending::State::kDropped;
  return {.bucket = bucket,
          .step = pending.step,
          .version = buckets_[bucket].consistency->version(),
          .staleness = dropped ? 0 : pending.staleness,
          .dropped = dropped};
}

absl::Status BucketRounds::Answer(int bucket, const std::vector<int>& readers, BegunAnswers begun, Lane& lane,
                                  Replies& replies) {
  BucketState& state = buckets_[bucket];
  std::optional<Snapshot> weights;
  for (size_t i = 0; i < readers.size(); ++i) {
    // Each server begins with another worker, so that not all of them send to the same one first.
    const int reader = readers[(i + static_cast<size_t>(job_.server)) % readers.size()];
    Pending& pending = state.pending[reader];
    state.received_version[reader] = state.consistency->version();
    if (pending.state == Pending::State::kJoining) {
      pending.state = Pending::State::kNone;
      ReadToJoin(reader, replies);
      continue;
    }
    PSRING_CHECK(pending.state != Pending::State::kNone && pending.state != Pending::State::kPushed);
    message::Answer answer = AnswerMessage(reader, bucket);
    Reply reply{.counted = pending.state == Pending::State::kRepeated};
    pending.state = Pending::State::kNone;
    if (const auto found = begun.replies.find(reader); found != begun.replies.end()) {
      reply = std::move(found->second);
    } else {
      PSRING_ASSIGN_OR_RETURN(reply.begun_on, CopyInPlace(reader, bucket, lane));
      reply.in_place = reply.begun_on != nullptr;
      if (reply.in_place) {
        answer.shared = message::SharedPlaces{.bytes = shard_.bucket_bytes(bucket)};
      } else {
        if (!weights.has_value()) {
          PSRING_ASSIGN_OR_RETURN(weights, shard_.Read(bucket));
        }
        reply.weights = *weights;
        if (shard_.sends_copies()) {
          reply.weights.keep = shard_.staging().Lend(std::move(reply.weights.keep), reader);
        }
      }
      reply.message = answer;
    }
    replies.emplace_back(reader, std::move(reply));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ReplySink>> BucketRounds::CopyInPlace(int worker, int bucket, Lane& lane) {
  std::shared_ptr<ReplySink> sink = workers_[worker].Sink();
  if (sink == nullptr) return nullptr;
  const ReplySink::Place place = sink->PlaceOf(bucket, shard_.bucket_bytes(bucket));
  if (place.data == nullptr) return nullptr;
  PSRING_RETURN_IF_ERROR(shard_.CopyWeightsTo(bucket, place.data, place.on_gpu, lane));
  return sink;
}

absl::StatusOr<std::vector<Reply>> BucketRounds::Weights(int slot) {
  std::vector<Reply> replies;
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    MutexLock lock(buckets_[bucket].mutex);
    PSRING_ASSIGN_OR_RETURN(Snapshot copy, shard_.Copy(bucket, slot));
    replies.push_back({.message = message::Weights{.bucket = bucket}, .weights = std::move(copy)});
  }
  return replies;
}

absl::Status BucketRounds::Restore(const Checkpoint& checkpoint) {
  ForgetArrivals();
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    state.consistency->Restore(checkpoint.buckets[bucket]);
    state.received_version.assign(job_.workers, state.consistency->version());
    PSRING_RETURN_IF_ERROR(shard_.LoadBucket(bucket, checkpoint.values.data()));
    shard_.set_samples_applied(bucket, checkpoint.samples[bucket]);
  }
  MutexLock lock(admission_mutex_);
  if (admission_.has_value()) {
    admission_->Restore(checkpoint.step, checkpoint.buckets.empty() ? std::vector<bool>(job_.workers)
                                                                    : checkpoint.buckets.front().left);
  }
  return absl::OkStatus();
}

void BucketRounds::BeginAt(int64_t step, int64_t samples, int beyond) {
  ForgetArrivals();
  const Consistency::State begin{.version = rule_.each_alone() ? step * job_.workers + beyond : step,
                                 .next_step = std::vector<int64_t>(job_.workers, step),
                                 .left = std::vector<bool>(job_.workers)};
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    state.consistency->Restore(begin);
    state.received_version.assign(job_.workers, begin.version);
    shard_.set_samples_applied(bucket, samples);
  }
  MutexLock lock(admission_mutex_);
  if (admission_.has_value()) admission_->Restore(step, begin.left);
}

absl::StatusOr<std::optional<Checkpoint>> BucketRounds::Save() {
  Checkpoint checkpoint{.job = job_};
  checkpoint.values.resize(shard_.value_count());
  const bool together = !rule_.each_alone();
  bool consistent = true;
  absl::Status saved;
  {
    MutexLock admission_lock(admission_mutex_);
    // Synchronous: all buckets at once; else one after the other.
    std::vector<std::unique_ptr<MutexLock>> locks;
    if (together) locks = LockAll();
    for (int i = 0; i < bucket_count() && consistent && saved.ok(); ++i) {
      if (!together) locks.push_back(std::make_unique<MutexLock>(buckets_[i].mutex));
      checkpoint.buckets.push_back(buckets_[i].consistency->Save());
      checkpoint.samples.push_back(shard_.samples_applied(i));
      // Clipping: a decided update may not have been made yet.
      consistent = !together || (checkpoint.buckets[i].version == checkpoint.buckets[0].version &&
                                 (job_.clip_norm == 0 || !clipping_.Holds(i)));
      if (consistent) saved = shard_.SaveBucket(i, checkpoint.values.data());
      if (!together) locks.clear();
    }
  }
  PSRING_RETURN_IF_ERROR(saved);
  if (!consistent) return std::nullopt;
  if (bucket_count() > 0) checkpoint.step = checkpoint.buckets[0].version;
  if (rule_.each_alone()) checkpoint.step /= job_.workers;
  return checkpoint;
}

}  // namespace psring
