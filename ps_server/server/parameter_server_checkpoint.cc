// When a checkpoint is taken, and of what.
//
// Synchronous: at a version that all buckets have reached and none is beyond. The bucket that gets there last
// finds it out, and its replies are held back until the copy is made: without them nobody makes the next
// step. Where each push is an update by itself, a bucket is copied whenever its turn comes.

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

void ParameterServer::NoteVersion(int bucket, int64_t version) {
  if (writer_ == nullptr) return;
  const int64_t every = options_.checkpoint_every;
  if (rule_.each_alone()) {
    if (bucket == 0 && every > 0 && version % (every * options_.workers) == 0) checkpoint_due_ = true;
    return;
  }
  const bool asked = checkpoint_asked_;
  if (!asked && (every == 0 || version % every != 0)) return;
  MutexLock lock(checkpoint_mutex_);
  if (version > version_counted_) {
    version_counted_ = version;
    buckets_counted_ = 0;
  }
  if (version == version_counted_ && ++buckets_counted_ == job_.buckets.size()) checkpoint_due_ = true;
}

void ParameterServer::CheckpointIfDue() {
  if (checkpoint_due_ && checkpoint_due_.exchange(false)) TakeCheckpoint(/*finished=*/false);
}

bool ParameterServer::TakeCheckpoint(bool finished) {
  Checkpoint checkpoint{.job = job_, .finished = finished};
  const size_t bucket_count = job_.buckets.size();
  checkpoint.values.resize(shard_->value_count());
  absl::Status saved;
  bool consistent = true;
  {
    MutexLock admission_lock(admission_mutex_);
    const bool together = !rule_.each_alone();
    // All at once, where they belong together; else one by one.
    for (size_t i = 0; together && i < bucket_count; ++i) buckets_[i].mutex.Lock();
    for (size_t i = 0; i < bucket_count && consistent; ++i) {
      if (!together) buckets_[i].mutex.Lock();
      checkpoint.buckets.push_back(buckets_[i].consistency->Save());
      checkpoint.samples.push_back(shard_->samples_applied(static_cast<int>(i)));
      // Clipping: an update that is decided may not have been made yet.
      consistent = !together || (checkpoint.buckets[i].version == checkpoint.buckets[0].version &&
                                 !buckets_[i].reduced.has_value());
      if (consistent) {
        saved = shard_->SaveBucket(static_cast<int>(i), checkpoint.values.data());
        consistent = saved.ok();
      }
      if (!together) buckets_[i].mutex.Unlock();
    }
    for (size_t i = bucket_count; together && i > 0; --i) buckets_[i - 1].mutex.Unlock();
  }
  if (!saved.ok()) Abort(saved);
  if (!consistent) return false;
  if (bucket_count > 0) checkpoint.step = checkpoint.buckets[0].version;
  if (rule_.each_alone()) checkpoint.step /= options_.workers;
  checkpoint.stats = stats();
  checkpoint_asked_ = false;
  writer_->Write(std::move(checkpoint));
  return true;
}

bool ParameterServer::CheckpointNow(absl::Time deadline) {
  if (writer_ == nullptr || !started_) return false;
  checkpoint_asked_ = true;
  if (TakeCheckpoint(/*finished=*/was_finished_)) {
    writer_->Flush();
    return true;
  }
  while (checkpoint_asked_ && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  writer_->Flush();
  return !checkpoint_asked_;
}

// Every worker that has heard of another server's death says so; the first counts, for then all their streams
// end, and in the next life the others ask for an epoch that has begun.
absl::Status ParameterServer::OnRewind(int worker, const message::Rewind& rewind) {
  if (writer_ == nullptr || rule_.each_alone() || rewind.step < 0) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " wants to go back to step ",
                                                      rewind.step, ", and there is no such way"));
  }
  {
    MutexLock lock(mutex_);
    if (!goes_back_to_.has_value()) goes_back_to_ = Rewind{.step = rewind.step, .epoch = rewind.epoch};
  }
  Abort(absl::CancelledError(absl::StrCat("the job goes back to step ", rewind.step, " or before")));
  return absl::OkStatus();
}

std::optional<ParameterServer::Rewind> ParameterServer::goes_back_to() const {
  MutexLock lock(mutex_);
  return goes_back_to_;
}

}  // namespace psring
