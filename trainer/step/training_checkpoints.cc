// Resuming from a checkpoint, and writing checkpoints.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/text/translate.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

constexpr char kEnd[] = "end";     // the name of the checkpoint that a stopped rank makes
constexpr char kKept[] = "/kept";  // after a moment's name: the checkpoint is complete

// Time to wait for the other ranks' parts. A synchronous worker of a server may not arrive because it went
// back with the server, as this one will.
constexpr absl::Duration kPatience = absl::Seconds(5);
// The others may first need their own signal to stop (trainer_main.cc).
constexpr absl::Duration kPatienceAtTheEnd = absl::Seconds(10);

}  // namespace

absl::Status Training::PlanResumption() {
  PSRING_ASSIGN_OR_RETURN(const TrainingPosition from, DecodePosition(*worker_.resume));
  int residuals = 0;
  if (!worker_.resume->position.empty()) {
    PSRING_ASSIGN_OR_RETURN(const auto hashes, HashesIn(worker_.resume->position));
    for (int worker = 0; worker < from.workers; ++worker) residuals += hashes.contains(WorkerFile(worker));
  }
  sequence_ = std::max(from.sequence, worker_.resume->sequence);
  resume_ = PlanResume(from, PositionAt(0, 0), sampler_->steps_per_epoch(), worker_.resume->has_optimizer,
                       residuals);
  updates_.optimizer.earlier_updates = resume_.earlier_updates - resume_.step * (updates_of_step_ - 1);
  clock_->ResumeAt(resume_.step, resume_.samples, resume_.beyond);
  if (!resume_.worker_steps.empty()) {
    sample_shift_ = resume_.worker_steps[static_cast<size_t>(worker_.rank)] - resume_.step;
  }
  return absl::OkStatus();
}

absl::Status Training::LoadCheckpoint(std::vector<float>& weights) {
  if (resume_.with_residuals) {
    PSRING_RETURN_IF_ERROR(DecodeResidual(*worker_.resume, model_->parameters(), residual_));
  }
  if (!worker_.resume->model.empty()) {  // otherwise the strategy sends it from rank 0
    PSRING_ASSIGN_OR_RETURN(loaded_, DecodeCheckpoint(*worker_.resume, whole()));
    if (part_.has_value()) TakeOwnPart(loaded_);
    weights = std::move(loaded_.weights);
    if (!resume_.with_slots) loaded_.slots.clear();
  }
  if (!is_first_rank()) return absl::OkStatus();
  worker_.on_note(
      Tr("resumed after step $0 of $1 ($2 samples)", resume_.step, plan_.total_steps(), resume_.samples));
  for (const std::string& note : resume_.notes) worker_.on_note(note);
  return absl::OkStatus();
}

TrainingPosition Training::PositionAt(int64_t next, int64_t updates) const {
  return {.model = options_.model,
          .data = worker_.data.name,
          .strategy = options_.strategy,
          .asynchronous = clock_->each_push(),
          .data_count = worker_.data.train.predictions(),
          .drawn_batch = plan_.drawn_batch,
          .workers = worker_.world_size,
          .seed = options_.seed,
          .wire = options_.wire,
          .optimizer = updates_.optimizer,
          .schedule = updates_.schedule,
          .flags = TrainingArguments(options_),
          .sequence = sequence_ + 1,
          .step = next,
          .updates = updates * updates_of_step_ + updates_.optimizer.earlier_updates,
          .samples = clock_->SamplesAt(updates),
          .epoch = next / sampler_->steps_per_epoch(),
          .epoch_samples = next % sampler_->steps_per_epoch() * plan_.drawn_batch,
          .ready_order = result_.ddp.ready_order};
}

// The state that only this worker has, if it continues with `next`.
WorkerPart Training::OwnPart(int64_t next) const {
  const ConstSpan residual =
      strategy_.residuals != nullptr ? strategy_.residuals->ResidualBefore(next) : ConstSpan();
  return {.next = next + sample_shift_,
          .residual = residual.count > 0 ? EncodeResidual(residual, model_->parameters()) : ""};
}

// An asynchronous worker's pushes of rows are in the servers' tables before rank 0 reads them.
absl::Status Training::SettleRows() {
  auto* const rows = dynamic_cast<PendingUpdates*>(row_strategy_.get());
  return rows != nullptr && checkpoints_.pauses_updates ? rows->Settle() : absl::OkStatus();
}

// On all ranks except 0. An asynchronous worker waits until rank 0 has the weights that its updates led to.
absl::Status Training::PublishPart(const Moment& moment) {
  if (strategy_.sharded != nullptr) PSRING_RETURN_IF_ERROR(strategy_.sharded->SendState());
  if (worker_.parts == nullptr) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(SettleRows());
  PSRING_RETURN_IF_ERROR(worker_.parts->Leave(moment.name, OwnPart(moment.next)));
  if (!checkpoints_.ranks_meet) return absl::OkStatus();
  const absl::Status met = worker_.parts->MeetRank(worker_.rank, moment.name);
  if (!checkpoints_.pauses_updates) return met;
  // Without rank 0 there is no checkpoint, but training continues.
  if (met.ok()) (void)worker_.parts->MeetRank(worker_.rank, absl::StrCat(moment.name, kKept));
  return absl::OkStatus();
}

// A synchronous rank that failed because rank 0 stopped still has its part of rank 0's checkpoint: both have
// made the same steps, and this rank may have begun the next.
void Training::PublishLastPart() {
  if (worker_.parts == nullptr || worker_.rank == 0 || checkpoints_.pauses_updates || part_.has_value())
    return;
  if (const std::optional<int64_t> next = worker_.parts->StopsBefore(); next.has_value()) {
    (void)worker_.parts->Leave(kEnd, OwnPart(*next));
  }
}

bool Training::AbortEndsTheProcess() const {
  return worker_.group != nullptr && worker_.group->info().backend == "mpi";
}

// On rank 0: the parts that arrived, by rank.
std::vector<std::optional<WorkerPart>> Training::TakeParts(const Moment& moment) {
  std::vector<std::optional<WorkerPart>> parts(static_cast<size_t>(worker_.world_size));
  parts[0] = OwnPart(moment.next);
  if (worker_.parts == nullptr) return parts;
  const bool meets = checkpoints_.ranks_meet && !moment.stops;
  // A step of MPI's ranks cannot be aborted.
  const absl::Duration patience = !moment.stops           ? kPatience
                                  : AbortEndsTheProcess() ? absl::ZeroDuration()
                                                          : kPatienceAtTheEnd;
  const MonotonicTime deadline = MonotonicNow() + patience;
  for (int rank = 1; rank < worker_.world_size; ++rank) {
    absl::Status came = meets ? worker_.parts->MeetRank(rank, moment.name) : absl::OkStatus();
    if (came.ok()) {
      absl::StatusOr<WorkerPart> part = worker_.parts->Take(
          rank, moment.name, checkpoints_.same_step ? std::optional(moment.next) : std::nullopt, deadline);
      came = part.status();
      if (part.ok()) parts[static_cast<size_t>(rank)] = *std::move(part);
    }
    if (!came.ok()) {
      worker_.on_note(absl::StrCat("the checkpoint of step ", moment.step, " lacks the state of rank ", rank,
                                   ": ", came.message()));
    }
  }
  return parts;
}

// Weights, buffers and optimizer slots; rows of tables are read when they are written. `is_of_step`: see
// SyncStrategy::Save.
absl::StatusOr<TrainingCheckpoint> Training::ReadState(bool& is_of_step) {
  const size_t count = model_->parameters().count();
  TrainingCheckpoint checkpoint{.weights = std::vector<float>(count)};
  std::vector<Span> slots;
  checkpoint.slots.resize(OptimizerSlots(updates_.optimizer.kind).size());
  for (std::vector<float>& slot : checkpoint.slots) {
    slot.resize(count);
    slots.push_back({slot.data(), count});
  }
  PSRING_ASSIGN_OR_RETURN(is_of_step, strategy_.sync->Save({checkpoint.weights.data(), count}, slots));
  PSRING_ASSIGN_OR_RETURN(checkpoint.buffers, BuffersOnHost());
  checkpoint.rows = RowsOfCheckpoint();
  return checkpoint;
}

// On rank 0.
absl::Status Training::SaveCheckpoint(const Moment& moment) {
  std::vector<std::optional<WorkerPart>> parts;
  // Asynchronous workers pause when their parts have arrived: then the server has exactly their steps.
  if (checkpoints_.pauses_updates) parts = TakeParts(moment);
  bool is_of_step = false;
  PSRING_ASSIGN_OR_RETURN(TrainingCheckpoint checkpoint, ReadState(is_of_step));
  // Those that pause continue.
  const auto release = [&] {
    if (!checkpoints_.pauses_updates || moment.stops || worker_.parts == nullptr) return;
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      if (!parts[rank].has_value()) continue;
      (void)worker_.parts->MeetRank(static_cast<int>(rank), absl::StrCat(moment.name, kKept));
    }
  };
  if (!is_of_step) {
    release();
    return absl::OkStatus();
  }

  if (!checkpoints_.pauses_updates) {
    if (moment.stops && worker_.parts != nullptr) {
      // The others wait for this rank in the next step.
      PSRING_RETURN_IF_ERROR(worker_.parts->SayThatItStops(moment.next));
      if (!AbortEndsTheProcess())
        strategy_.sync->Abort(absl::CancelledError("rank 0 was stopped by a signal"));
    }
    parts = TakeParts(moment);
  }

  checkpoint.position = PositionAt(moment.step, clock_->each_push() ? clock_->updates() : moment.step);
  const bool has_all = std::ranges::all_of(parts, [](const auto& part) { return part.has_value(); });
  if (clock_->each_push() && has_all) {
    std::vector<int64_t> steps;
    for (const std::optional<WorkerPart>& part : parts) steps.push_back(part->next);
    const int64_t updates = std::accumulate(steps.begin(), steps.end(), int64_t{0});  // one per step
    checkpoint.position = PositionAt(updates / worker_.world_size, updates);
    checkpoint.position.worker_steps = std::move(steps);
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (!parts[rank].has_value() || parts[rank]->residual.empty()) continue;
    checkpoint.worker_files.emplace_back(WorkerFile(static_cast<int>(rank)),
                                         std::move(parts[rank]->residual));
  }
  PSRING_RETURN_IF_ERROR(worker_.save(moment.step, [&](CheckpointSink& sink) {
    return WriteCheckpoint(checkpoint, model_->parameters(), sink);
  }));
  saved_step_ = moment.step;
  ++sequence_;
  release();
  return absl::OkStatus();
}

absl::Status Training::SaveOrSend(const Moment& moment) {
  if (part_.has_value()) return SaveStages(moment);
  return worker_.rank == 0 ? SaveCheckpoint(moment) : PublishPart(moment);
}

// Every --checkpoint_every steps, and when this rank is stopped. `before`: the clock's checkpoint_step before
// the last step.
absl::Status Training::CheckpointIfDue(int64_t before) {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  const int64_t every = options_.checkpoint_every, done = clock_->checkpoint_step(), next = clock_->next();
  bool stops = worker_.stops();
  const bool stops_together = strategy_.sharded != nullptr || part_.has_value();
  if (part_.has_value()) {
    PSRING_ASSIGN_OR_RETURN(stops, FirstRankStops(stops));
  } else if (strategy_.sharded != nullptr) {
    PSRING_ASSIGN_OR_RETURN(stops, strategy_.sharded->Rank0Stops(stops));
  }
  const bool due = every > 0 && done / every > before / every && done < plan_.total_steps();
  if (due) {
    const Moment moment{.name = absl::StrCat("step", done / every * every), .step = done, .next = next};
    PSRING_RETURN_IF_ERROR(SaveOrSend(moment));
    if (checkpoints_.barrier) PSRING_RETURN_IF_ERROR(worker_.barrier());
  }
  if (!stops) return absl::OkStatus();
  if (stops_together) return StopTogether({.name = kEnd, .step = done, .next = next}, !due);
  const Moment end{.name = kEnd, .step = done, .next = next, .stops = true};
  if (worker_.rank == 0) {
    if (saved_step_ != done) PSRING_RETURN_IF_ERROR(SaveCheckpoint(end));
    return absl::CancelledError(
        absl::StrCat("stopped by a signal after writing a checkpoint of step ", done));
  }
  // The other ranks of a synchronous strategy end after rank 0, whose step needs them.
  if (!checkpoints_.pauses_updates) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(SettleRows());
  if (worker_.parts != nullptr) PSRING_RETURN_IF_ERROR(worker_.parts->Leave(kEnd, OwnPart(next)));
  PSRING_RETURN_IF_ERROR(strategy_.sync->Collect(weights_.span()));
  return absl::CancelledError("stopped by a signal");
}

// All ranks, if the state of a strategy is sharded or that of a pipeline is on several ranks, after the same
// step. `saves`: they have not saved it yet.
absl::Status Training::StopTogether(const Moment& end, bool saves) {
  if (saves) {
    PSRING_RETURN_IF_ERROR(SaveOrSend(end));
    (void)worker_.barrier();  // a rank that ends earlier does not matter any more
  }
  return absl::CancelledError(absl::StrCat(is_first_rank() ? "" : "rank 0 was ",
                                           "stopped by a signal after writing a checkpoint of step ",
                                           end.step));
}

// After the last step of all workers.
absl::Status Training::LastCheckpoint() {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  const Moment last{.name = "last", .step = plan_.total_steps(), .next = clock_->next()};
  return SaveOrSend(last);
}

}  // namespace psring
