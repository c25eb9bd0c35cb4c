#include "ps_server/server/bucket_rounds.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/ops/gradient_norm.h"
#include "ps_server/server/membership.h"

namespace psring {
BucketRounds::BucketRounds(const ServerJob& job, ParameterShard& shard, WorkerStream* workers,
                           Checkpointing& checkpointing, RowRounds* rows, Arrivals* arrivals)
    : job_(job),
      rule_(RuleOf(job)),
      shard_(shard),
      workers_(workers),
      checkpointing_(checkpointing),
      rows_(rows),
      arrivals_(arrivals),
      notes_arrivals_(arrivals != nullptr && rule_.each_alone()),
      buckets_(std::make_unique<BucketState[]>(job.buckets.size())),
      clipping_(job.buckets.size()) {
  if (notes_arrivals_) {
    *arrivals_ = {.consistency = job.consistency, .workers = job.workers};
    arrivals_->updates.resize(job.buckets.size());
  }
  if (rule_.kind == WaitingRule::Kind::kBackup && job.server == 0) {
    MutexLock lock(admission_mutex_);
    admission_.emplace(job.workers, rule_.number);
  }
  for (int i = 0; i < bucket_count(); ++i) {
    BucketState& state = buckets_[i];
    MutexLock lock(state.mutex);
    state.consistency = MakeConsistency(rule_, job.workers);
    state.backup = dynamic_cast<BackupBucket*>(state.consistency.get());
    state.summed = dynamic_cast<SummedPushes*>(state.consistency.get());
    state.bounded = dynamic_cast<BoundedWaits*>(state.consistency.get());
    state.pending.resize(static_cast<size_t>(job.workers));
    state.received_version.resize(static_cast<size_t>(job.workers));
  }
}

// The order of arrival before a checkpoint is not known.
void BucketRounds::ForgetArrivals() {
  notes_arrivals_ = false;
  if (arrivals_ != nullptr) *arrivals_ = {};
}

absl::StatusOr<bool> BucketRounds::MayBegin(int worker, const message::Gradient& chunk) {
  BucketState& state = buckets_[chunk.bucket];
  const Push& push = workers_[worker].pushes[static_cast<size_t>(chunk.bucket)];
  MutexLock lock(state.mutex);
  const uint64_t resets = shard_.resets(chunk.bucket);
  if (push.step >= 0 && !push.whole && push.resets == resets && push.step != chunk.step) {
    return InvalidArgument("step ", chunk.step, " in the middle of the push of step ", push.step);
  }
  if (chunk.resets != resets) {
    return InvalidArgument("a push for the sum after ", chunk.resets, " resets of ", resets);
  }
  // Only after a broken stream or a restart of the server does a worker send a push again; if each push is an
  // update, also after a restart of another server, which has lost some.
  const bool may_repeat = push.step < 0 || rule_.each_alone();
  if (may_repeat && state.consistency->IsRepeat(worker, chunk.step)) return true;
  PSRING_RETURN_IF_ERROR(state.consistency->MayPush(worker, chunk.step));
  return false;
}

absl::Status BucketRounds::OnPush(int worker, int bucket, Lane& lane, Replies& replies) {
  Push& push = workers_[worker].pushes[static_cast<size_t>(bucket)];
  {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    const bool again = push.whole;
    if (!again && push.resets != shard_.resets(bucket)) return absl::OkStatus();
    push.whole = true;
    const Consistency::Decision decision = state.consistency->OnPush(worker, push.step);
    if (decision.accept) {
      state.pending[worker] = {
          .state = decision.repeats ? Pending::State::kRepeated : Pending::State::kPushed,
          .step = push.step,
          .samples = push.samples};
    }
    if (again) shard_.UseRepeat(worker, bucket);
    const absl::Status status = Act(bucket, decision, lane, replies);
    shard_.EndAnswers(bucket);
    PSRING_RETURN_IF_ERROR(AtBucket(status, worker, bucket));
  }
  return OnceReduced(lane, replies);
}

bool BucketRounds::IsUnanswered(int worker, int bucket, int64_t step) {
  MutexLock lock(buckets_[bucket].mutex);
  const Pending& pending = buckets_[bucket].pending[worker];
  return pending.state != Pending::State::kNone && pending.step == step;
}

absl::Status BucketRounds::ReleaseWaiting(Lane& lane, Replies& replies) {
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    if (state.bounded == nullptr) continue;
    PSRING_RETURN_IF_ERROR(Act(bucket, state.bounded->ReleaseAll(), lane, replies));
  }
  return absl::OkStatus();
}

absl::StatusOr<Verdict> BucketRounds::VerdictOf(int worker, const message::Announcement& announcement) {
  if (admission_.has_value()) return admission_->OnAnnounce(worker, announcement.step);
  if (rule_.kind != WaitingRule::Kind::kBackup) {
    return FailedPrecondition("worker ", worker, " announced step ", announcement.step, ", but \"",
                              job_.consistency, "\" needs no announcements");
  }
  // The first server's verdict, relayed.
  const bool admitted = announcement.step >= 0 && !announcement.dropped;
  const bool valid = announcement.complete >= 0 && announcement.complete <= job_.workers &&
                     (announcement.step >= 0 || announcement.complete > 0) &&
                     (!announcement.dropped || announcement.version > announcement.step);
  if (valid) {
    return Verdict{.worker = worker,
                   .admitted = admitted,
                   .version = admitted ? announcement.step : announcement.version,
                   .complete = static_cast<int>(announcement.complete)};
  }
  return InvalidArgument("worker ", worker, " sent an invalid verdict on step ", announcement.step,
                         ": version ", announcement.version, ", ", announcement.complete, " workers");
}

std::vector<std::unique_ptr<MutexLock>> BucketRounds::LockAll() {
  std::vector<std::unique_ptr<MutexLock>> locks;
  for (int i = 0; i < bucket_count(); ++i) locks.push_back(std::make_unique<MutexLock>(buckets_[i].mutex));
  return locks;
}

template <typename Decide>
absl::Status BucketRounds::ActOnAll(int worker, const Verdict& verdict, Lane& lane, Replies& replies,
                                    const Decide& decide) {
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    absl::Status status = Act(bucket, decide(bucket), lane, replies);
    if (status.ok() && verdict.complete > 0) {
      status = Act(bucket, state.backup->OnComplete(verdict.version, verdict.complete), lane, replies);
    }
    PSRING_RETURN_IF_ERROR(AtBucket(status, worker, bucket));
  }
  return absl::OkStatus();
}

absl::StatusOr<Verdict> BucketRounds::OnAnnounce(int worker, const message::Announcement& announcement,
                                                 Lane& lane, Replies& replies) {
  const int64_t step = announcement.step;
  const bool completes_only = step < 0;
  Verdict verdict;
  {
    MutexLock lock(admission_mutex_);
    PSRING_ASSIGN_OR_RETURN(verdict, VerdictOf(worker, announcement));
    const bool dropped = !verdict.admitted && !completes_only;
    if (verdict.admitted && admission_.has_value()) {
      replies.push_back({worker, {.message = message::Admitted{.step = step, .complete = verdict.complete}}});
    } else if (dropped) {
      MutexLock worker_lock(workers_[worker].mutex);
      workers_[worker].ContinueAt(verdict.version, job_.buckets.size());
    }
    PSRING_RETURN_IF_ERROR(ActOnAll(worker, /*verdict=*/{}, lane, replies, [&](int bucket) {
      BucketState& state = buckets_[bucket];
      Verdict of_bucket = verdict;
      // The step that a relayed verdict names may be complete already. Then newer weights do no harm: the
      // gradient that the worker computes from them will be dropped as well.
      if (dropped) of_bucket.version = std::max(verdict.version, state.consistency->version());
      Consistency::Decision decision = completes_only
                                           ? state.backup->OnComplete(verdict.version, verdict.complete)
                                           : state.backup->OnVerdict(of_bucket);
      // A refused verdict must not replace a push that waits.
      if (dropped && decision.accept) {
        state.pending[worker] = {.state = Pending::State::kDropped, .step = step};
      }
      return decision;
    }));
  }
  PSRING_RETURN_IF_ERROR(OnceReduced(lane, replies));
  return verdict;
}

absl::StatusOr<Verdict> BucketRounds::OnLeave(int worker, Lane& lane, Replies& replies) {
  Verdict verdict;
  {
    MutexLock lock(admission_mutex_);
    if (admission_.has_value()) {
      PSRING_ASSIGN_OR_RETURN(verdict, admission_->OnLeave(worker));
    }
    PSRING_RETURN_IF_ERROR(ActOnAll(worker, verdict, lane, replies, [&](int bucket) {
      return buckets_[bucket].consistency->OnLeave(worker);
    }));
  }
  PSRING_RETURN_IF_ERROR(OnceReduced(lane, replies));
  return verdict;
}

absl::Status BucketRounds::OnLost(int worker, Lane& lane, Replies& replies) {
  {
    MutexLock lock(admission_mutex_);
    const Verdict verdict = admission_.has_value() ? admission_->OnLost(worker) : Verdict{};
    PSRING_RETURN_IF_ERROR(ActOnAll(worker, verdict, lane, replies, [&](int bucket) {
      Push& push = workers_[worker].pushes[static_cast<size_t>(bucket)];
      if (push.step >= 0 && !push.whole) {
        const bool in_the_sum = push.high_water > 0 && push.resets == shard_.resets(bucket);
        if (shard_.adds_as_it_arrives() && in_the_sum) ResetBucket(bucket, replies);
        shard_.DropPush(worker, bucket);
        push.step = -1;
      }
      Pending& pending = buckets_[bucket].pending[worker];
      // A whole push still counts, but is not answered.
      if (pending.state != Pending::State::kPushed) pending = {};
      pending.joins = false;
      return buckets_[bucket].consistency->OnLost(worker);
    }));
  }
  return OnceReduced(lane, replies);
}

absl::Status BucketRounds::OnJoin(int worker, bool again, Replies& replies) {
  WorkerStream& stream = workers_[worker];
  MutexLock lock(admission_mutex_);
  const auto locks = LockAll();  // no bucket may advance between JoinsAt and OnJoin
  int64_t step = 0;
  if (admission_.has_value()) {
    PSRING_ASSIGN_OR_RETURN(const Verdict verdict, admission_->OnJoin(worker));
    step = verdict.version;
  }
  for (int i = 0; i < bucket_count(); ++i) {
    const Consistency& consistency = *buckets_[i].consistency;
    // It may be admitted again to a step whose sum already contains its earlier push.
    if (admission_.has_value() && consistency.JoinsAt(worker) > step) ResetBucket(i, replies);
    step = std::max(step, consistency.JoinsAt(worker));
  }
  {
    MutexLock worker_lock(stream.mutex);
    stream.buckets_to_read = job_.buckets.size();
    stream.joins_at = step;
    stream.joins_again = again;
    stream.ContinueAt(step, job_.buckets.size());
    stream.held.clear();
  }
  for (int i = 0; i < bucket_count(); ++i) {
    BucketState& state = buckets_[i];
    const Consistency::Decision decision = state.consistency->OnJoin(worker, step);
    if (!decision.accept) return FailedPrecondition(decision.reason);
    Pending& pending = state.pending[worker];
    if (pending.state == Pending::State::kPushed) {  // from before its loss, not applied yet
      pending.joins = true;
    } else {
      pending = {.state = Pending::State::kJoining};
    }
    if (decision.may_read.empty()) continue;
    pending = {};
    ReadToJoin(worker, replies);
  }
  return absl::OkStatus();
}

void BucketRounds::ReadToJoin(int worker, Replies& replies) {
  WorkerStream& stream = workers_[worker];
  MutexLock lock(stream.mutex);
  if (--stream.buckets_to_read > 0) return;
  replies.emplace_back(
      worker, Reply{.message = message::Welcome{.step = stream.joins_at, .went_back = stream.joins_again}});
}

absl::Status BucketRounds::Act(int bucket, const Consistency::Decision& decision, Lane& lane,
                               Replies& replies) {
  BucketState& state = buckets_[bucket];
  if (!decision.accept) return FailedPrecondition(decision.reason);
  const bool clips = job_.clip_norm > 0;
  const int64_t version = state.consistency->version();
  // Clipping: noted when the update is made.
  if (decision.empty_update || (decision.apply_count > 0 && !clips))
    checkpointing_.NoteVersion(bucket, version);
  const bool updates_rows = rows_ != nullptr && bucket == 0;
  if (decision.apply_count == 0) {
    if (decision.empty_update && updates_rows) PSRING_RETURN_IF_ERROR(rows_->OnUpdate({}, replies));
    // Workers that read the version which a held update makes.
    if (clips && clipping_.AddReaders(bucket, decision.may_read)) return absl::OkStatus();
    return Answer(bucket, decision.may_read, {}, lane, replies);
  }
  Clipping::Update update{.step = version - 1, .may_read = decision.may_read};
  for (int i = 0; i < job_.workers; ++i) {
    Pending& pending = state.pending[i];
    if (pending.state != Pending::State::kPushed) continue;
    pending.state = pending.joins ? Pending::State::kJoining : Pending::State::kApplied;
    pending.staleness = version - 1 - state.received_version[i];
    update.workers.push_back(i);
    update.samples += pending.samples;
  }
  PSRING_CHECK(static_cast<int>(update.workers.size()) == decision.apply_count);
  if (updates_rows) PSRING_RETURN_IF_ERROR(rows_->OnUpdate(update.workers, replies));
  if (clips) {
    PSRING_ASSIGN_OR_RETURN(update.sum_of_squares, shard_.Reduce(bucket, update.workers, lane));
    clipping_.Hold(bucket, std::move(update));
    return absl::OkStatus();
  }
  const int first = update.workers.front();
  ParameterShard::Factors factors;
  if (job_.staleness_lr) {
    factors.rate = 1.0 / static_cast<double>(std::max<int64_t>(1, state.pending[first].staleness));
  }
  if (notes_arrivals_ && !arrivals_->IsFull(bucket)) {
    arrivals_->updates[bucket].push_back(static_cast<uint16_t>(first));
  }
  return MakeUpdate(bucket, update, factors, lane, replies);
}

absl::Status BucketRounds::MakeUpdate(int bucket, const Clipping::Update& update,
                                      const ParameterShard::Factors& factors, Lane& lane, Replies& replies) {
  PSRING_ASSIGN_OR_RETURN(BegunAnswers begun, BeginAnswers(bucket, update.may_read));
  const size_t all = shard_.bucket_bytes(bucket);
  Outlets outlets{.places = begun.places};
  outlets.made = [&begun, all](size_t made) {
    // The last part is delivered as the answer, after everything else that follows from the decision.
    if (made == all) return;
    for (auto& [reader, reply] : begun.replies) {
      if (reply.in_place) continue;
      reply.begun_on->Deliver(
          {.message = reply.message, .weights = reply.weights, .from = reply.from, .upto = made});
      reply.from = made;
    }
  };
  PSRING_RETURN_IF_ERROR(shard_.Apply(bucket, update.workers, update.samples,
                                      buckets_[bucket].consistency->version(), factors, lane, outlets));
  return Answer(bucket, update.may_read, std::move(begun), lane, replies);
}

absl::Status BucketRounds::OnceReduced(Lane& lane, Replies& replies) {
  if (job_.clip_norm == 0) return absl::OkStatus();
  const std::optional<Clipping::Step> complete = clipping_.TakeComplete();
  if (!complete.has_value()) return absl::OkStatus();
  if (job_.servers == 1) return ApplyReduced(complete->sum_of_squares, lane, replies);
  clipping_.AwaitTotal(complete->step);
  for (const int worker : complete->workers) {
    replies.push_back(
        {worker,
         {.message = message::NormPart{.step = complete->step, .sum_of_squares = complete->sum_of_squares}}});
  }
  return absl::OkStatus();
}

absl::Status BucketRounds::OnNormTotal(const message::NormTotal& total, Lane& lane, Replies& replies) {
  if (!clipping_.TakeTotal(total.step)) return absl::OkStatus();
  return ApplyReduced(total.sum_of_squares, lane, replies);
}

absl::Status BucketRounds::ApplyReduced(double sum_of_squares, Lane& lane, Replies& replies) {
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    const Clipping::Update held = clipping_.Take(bucket);
    const absl::StatusOr<double> factor = ClipFactor(job_.clip_norm, sum_of_squares, held.samples);
    if (!factor.ok()) return Prefixed(factor.status(), "step ", held.step, ": ");
    checkpointing_.NoteVersion(bucket, state.consistency->version());
    PSRING_RETURN_IF_ERROR(MakeUpdate(bucket, held, {.gradient = *factor}, lane, replies));
  }
  return absl::OkStatus();
}

// Part of a gradient is in the sum and cannot be removed: the sum is emptied, and all workers whose gradients
// were in it send them again. Workers keep their gradients until they are answered.
void BucketRounds::ResetBucket(int bucket, Replies& replies) {
  BucketState& state = buckets_[bucket];
  const uint64_t resets = shard_.Reset(bucket);
  PSRING_CHECK(state.summed != nullptr);  // other machines add no pushes to a sum
  state.summed->OnReset();
  for (int worker = 0; worker < job_.workers; ++worker) {
    Pending& pending = state.pending[worker];
    if (pending.state == Pending::State::kPushed && pending.joins) {
      pending = {.state = Pending::State::kJoining};  // does not send again, and waits as before
    } else if (pending.state == Pending::State::kPushed) {
      pending = {};
      MutexLock lock(workers_[worker].mutex);
      --workers_[worker].pushes_complete;
    }
    replies.emplace_back(worker, Reply{.message = message::Reset{.bucket = bucket, .resets = resets}});
  }
}

BucketRounds::Missing BucketRounds::WaitsFor() {
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    MutexLock lock(buckets_[bucket].mutex);
    const Consistency::Wait wait = buckets_[bucket].consistency->WaitsFor();
    if (wait.workers.empty()) continue;
    return {wait.workers,
            absl::StrCat(WorkersText(wait.workers), " to push bucket ", bucket, " of step ", wait.step)};
  }
  MutexLock lock(admission_mutex_);
  const Consistency::Wait wait = admission_.has_value() ? admission_->WaitsFor() : Consistency::Wait{};
  if (wait.workers.empty()) return {};
  return {wait.workers,
          absl::StrCat(WorkersText(wait.workers), " to announce the gradient of step ", wait.step)};
}

}  // namespace psring
