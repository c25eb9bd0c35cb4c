#include "trainer/step/checkpointer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/text/translate.h"

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

absl::StatusOr<Resumption> PlanResumption(const CheckpointBytes& from, const TrainingPosition& now,
                                          int64_t steps_per_epoch, int rank) {
  PSRING_ASSIGN_OR_RETURN(const TrainingPosition then, DecodePosition(from));
  int residuals = 0;
  if (!from.position.empty()) {
    PSRING_ASSIGN_OR_RETURN(const auto hashes, HashesIn(from.position));
    for (int worker = 0; worker < then.workers; ++worker) residuals += hashes.contains(WorkerFile(worker));
  }
  Resumption made{.plan = PlanResume(then, now, steps_per_epoch, from.has_optimizer, residuals),
                  .sequence = std::max(then.sequence, from.sequence)};
  if (!made.plan.worker_steps.empty()) {
    made.sample_shift = made.plan.worker_steps[static_cast<size_t>(rank)] - made.plan.step;
  }
  return made;
}

absl::StatusOr<Checkpointer::Loaded> Checkpointer::Load(std::vector<float>& weights) {
  Loaded loaded;
  if (worker_.resume == nullptr) return loaded;
  const ResumePlan& resume = parts_.resumption.plan;
  if (resume.with_residuals) {
    PSRING_RETURN_IF_ERROR(DecodeResidual(*worker_.resume, parts_.layout, loaded.residual));
  }
  if (!worker_.resume->model.empty()) {  // otherwise the strategy sends it from rank 0
    PSRING_ASSIGN_OR_RETURN(
        loaded.state,
        DecodeCheckpoint(*worker_.resume, parts_.part != nullptr ? parts_.part->whole : parts_.layout));
    if (parts_.part != nullptr) TakeOwnPart(loaded.state);
    weights = std::move(loaded.state.weights);
    if (!resume.with_slots) loaded.state.slots.clear();
  }
  // The tables' values, and the slots of their optimizer if it is continued.
  const size_t slots = resume.with_slots ? OptimizerSlots(parts_.run.optimizer.kind).size() : 0;
  if (!parts_.layout.tables().empty()) loaded.row_arrays = 1 + static_cast<int>(slots);
  if (!parts_.is_first_rank) return loaded;
  worker_.on_note(
      Tr("resumed after step $0 of $1 ($2 samples)", resume.step, parts_.total_steps, resume.samples));
  for (const std::string& note : resume.notes) worker_.on_note(note);
  return loaded;
}

TrainingPosition Checkpointer::PositionAt(int64_t next, int64_t updates) const {
  TrainingPosition position = parts_.run;
  position.sequence = sequence_ + 1;
  position.step = next;
  position.updates = updates * parts_.updates_of_step + position.optimizer.earlier_updates;
  position.samples = parts_.clock.SamplesAt(updates);
  position.epoch = next / parts_.steps_per_epoch;
  position.epoch_samples = next % parts_.steps_per_epoch * position.drawn_batch;
  return position;
}

// The state that only this worker has, if it continues with `next`.
WorkerPart Checkpointer::OwnPart(int64_t next) const {
  const ConstSpan residual =
      parts_.strategy.residuals != nullptr ? parts_.strategy.residuals->ResidualBefore(next) : ConstSpan();
  return {.next = next + parts_.resumption.sample_shift,
          .residual = residual.count > 0 ? EncodeResidual(residual, parts_.layout) : ""};
}

// An asynchronous worker's pushes of rows are in the servers' tables before rank 0 reads them.
absl::Status Checkpointer::SettleRows() {
  return parts_.plan.pauses_updates ? parts_.rows.Settle() : absl::OkStatus();
}

// On all ranks except 0. An asynchronous worker waits until rank 0 has the weights that its updates led to.
absl::Status Checkpointer::PublishPart(const Moment& moment) {
  if (parts_.strategy.sharded != nullptr) PSRING_RETURN_IF_ERROR(parts_.strategy.sharded->SendState());
  if (worker_.parts == nullptr) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(SettleRows());
  PSRING_RETURN_IF_ERROR(worker_.parts->Leave(moment.name, OwnPart(moment.next)));
  if (!parts_.plan.ranks_meet) return absl::OkStatus();
  const absl::Status met = worker_.parts->MeetRank(worker_.rank, moment.name);
  if (!parts_.plan.pauses_updates) return met;
  // Without rank 0 there is no checkpoint, but training continues.
  if (met.ok()) (void)worker_.parts->MeetRank(worker_.rank, absl::StrCat(moment.name, kKept));
  return absl::OkStatus();
}

// A synchronous rank that failed because rank 0 stopped still has its part of rank 0's checkpoint: both have
// made the same steps, and this rank may have begun the next.
void Checkpointer::PublishLastPart() {
  if (worker_.parts == nullptr || worker_.rank == 0 || parts_.plan.pauses_updates || parts_.part != nullptr)
    return;
  if (const std::optional<int64_t> next = worker_.parts->StopsBefore(); next.has_value()) {
    (void)worker_.parts->Leave(kEnd, OwnPart(*next));
  }
}

bool Checkpointer::AbortEndsTheProcess() const {
  return worker_.group != nullptr && worker_.group->info().backend == "mpi";
}

// On rank 0: the parts that arrived, by rank.
std::vector<std::optional<WorkerPart>> Checkpointer::TakeParts(const Moment& moment) {
  std::vector<std::optional<WorkerPart>> parts(static_cast<size_t>(worker_.world_size));
  parts[0] = OwnPart(moment.next);
  if (worker_.parts == nullptr) return parts;
  const bool meets = parts_.plan.ranks_meet && !moment.stops;
  // A step of MPI's ranks cannot be aborted.
  const absl::Duration patience = !moment.stops           ? kPatience
                                  : AbortEndsTheProcess() ? absl::ZeroDuration()
                                                          : kPatienceAtTheEnd;
  const MonotonicTime deadline = MonotonicNow() + patience;
  for (int rank = 1; rank < worker_.world_size; ++rank) {
    absl::Status came = meets ? worker_.parts->MeetRank(rank, moment.name) : absl::OkStatus();
    if (came.ok()) {
      absl::StatusOr<WorkerPart> part = worker_.parts->Take(
          rank, moment.name, parts_.plan.same_step ? std::optional(moment.next) : std::nullopt, deadline);
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
absl::StatusOr<TrainingCheckpoint> Checkpointer::ReadState(bool& is_of_step) {
  const size_t count = parts_.layout.count();
  TrainingCheckpoint checkpoint{.weights = std::vector<float>(count)};
  std::vector<Span> slots;
  checkpoint.slots.resize(OptimizerSlots(parts_.run.optimizer.kind).size());
  for (std::vector<float>& slot : checkpoint.slots) {
    slot.resize(count);
    slots.push_back({slot.data(), count});
  }
  PSRING_ASSIGN_OR_RETURN(is_of_step, parts_.strategy.sync->Save({checkpoint.weights.data(), count}, slots));
  PSRING_ASSIGN_OR_RETURN(checkpoint.buffers, parts_.buffers.OnHost());
  checkpoint.rows = parts_.rows.ReaderAt(parts_.clock.next());
  return checkpoint;
}

// On rank 0.
absl::Status Checkpointer::SaveCheckpoint(const Moment& moment) {
  std::vector<std::optional<WorkerPart>> parts;
  // Asynchronous workers pause when their parts have arrived: then the server has exactly their steps.
  if (parts_.plan.pauses_updates) parts = TakeParts(moment);
  bool is_of_step = false;
  PSRING_ASSIGN_OR_RETURN(TrainingCheckpoint checkpoint, ReadState(is_of_step));
  // Those that pause continue.
  const auto release = [&] {
    if (!parts_.plan.pauses_updates || moment.stops || worker_.parts == nullptr) return;
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      if (!parts[rank].has_value()) continue;
      (void)worker_.parts->MeetRank(static_cast<int>(rank), absl::StrCat(moment.name, kKept));
    }
  };
  if (!is_of_step) {
    release();
    return absl::OkStatus();
  }

  if (!parts_.plan.pauses_updates) {
    if (moment.stops && worker_.parts != nullptr) {
      // The others wait for this rank in the next step.
      PSRING_RETURN_IF_ERROR(worker_.parts->SayThatItStops(moment.next));
      if (!AbortEndsTheProcess())
        parts_.strategy.sync->Abort(absl::CancelledError("rank 0 was stopped by a signal"));
    }
    parts = TakeParts(moment);
  }

  checkpoint.position =
      PositionAt(moment.step, parts_.clock.each_push() ? parts_.clock.updates() : moment.step);
  const bool has_all = std::ranges::all_of(parts, [](const auto& part) { return part.has_value(); });
  if (parts_.clock.each_push() && has_all) {
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
  PSRING_RETURN_IF_ERROR(worker_.save(
      moment.step, [&](CheckpointSink& sink) { return WriteCheckpoint(checkpoint, parts_.layout, sink); }));
  saved_step_ = moment.step;
  ++sequence_;
  release();
  return absl::OkStatus();
}

absl::Status Checkpointer::SaveOrSend(const Moment& moment) {
  if (parts_.part != nullptr) return SaveStages(moment);
  return worker_.rank == 0 ? SaveCheckpoint(moment) : PublishPart(moment);
}

// Every --checkpoint_every steps, and when this rank is stopped. `before`: the clock's checkpoint_step before
// the last step.
absl::Status Checkpointer::SaveIfDue(int64_t before) {
  if (parts_.options.checkpoint_dir.empty()) return absl::OkStatus();
  const int64_t every = parts_.options.checkpoint_every, done = parts_.clock.checkpoint_step(),
                next = parts_.clock.next();
  bool stops = worker_.stops();
  const bool stops_together = parts_.strategy.sharded != nullptr || parts_.part != nullptr;
  if (parts_.part != nullptr) {
    PSRING_ASSIGN_OR_RETURN(stops, FirstRankStops(stops));
  } else if (parts_.strategy.sharded != nullptr) {
    PSRING_ASSIGN_OR_RETURN(stops, parts_.strategy.sharded->Rank0Stops(stops));
  }
  const bool due = every > 0 && done / every > before / every && done < parts_.total_steps;
  if (due) {
    const Moment moment{.name = absl::StrCat("step", done / every * every), .step = done, .next = next};
    PSRING_RETURN_IF_ERROR(SaveOrSend(moment));
    if (parts_.plan.barrier) PSRING_RETURN_IF_ERROR(worker_.barrier());
  }
  if (!stops) return absl::OkStatus();
  if (stops_together) return StopTogether({.name = kEnd, .step = done, .next = next}, !due);
  const Moment end{.name = kEnd, .step = done, .next = next, .stops = true};
  if (worker_.rank == 0) {
    if (saved_step_ != done) PSRING_RETURN_IF_ERROR(SaveCheckpoint(end));
    return Cancelled("stopped by a signal after writing a checkpoint of step ", done);
  }
  // The other ranks of a synchronous strategy end after rank 0, whose step needs them.
  if (!parts_.plan.pauses_updates) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(SettleRows());
  if (worker_.parts != nullptr) PSRING_RETURN_IF_ERROR(worker_.parts->Leave(kEnd, OwnPart(next)));
  PSRING_RETURN_IF_ERROR(parts_.strategy.sync->Collect(parts_.weights));
  return absl::CancelledError("stopped by a signal");
}

// All ranks, if the state of a strategy is sharded or that of a pipeline is on several ranks, after the same
// step. `saves`: they have not saved it yet.
absl::Status Checkpointer::StopTogether(const Moment& end, bool saves) {
  if (saves) {
    PSRING_RETURN_IF_ERROR(SaveOrSend(end));
    (void)worker_.barrier();  // a rank that ends earlier does not matter any more
  }
  return Cancelled(parts_.is_first_rank ? "" : "rank 0 was ",
                   "stopped by a signal after writing a checkpoint of step ", end.step);
}

// After the last step of all workers.
absl::Status Checkpointer::SaveLast() {
  if (parts_.options.checkpoint_dir.empty()) return absl::OkStatus();
  const Moment last{.name = "last", .step = parts_.total_steps, .next = parts_.clock.next()};
  return SaveOrSend(last);
}

// Of a decoded checkpoint.
void Checkpointer::TakeOwnPart(TrainingCheckpoint& checkpoint) const {
  const PositionPart& own = parts_.part->parts[parts_.part->rank];
  const auto take = [](const LayoutPart& ranges, size_t count, std::vector<float>& values) {
    if (values.empty()) return;
    std::vector<float> part(count);
    TakePart(ranges, values.data(), part.data());
    values = std::move(part);
  };
  take(own.of_parameters, own.parameters, checkpoint.weights);
  for (std::vector<float>& slot : checkpoint.slots) take(own.of_parameters, own.parameters, slot);
  take(own.of_buffers, own.buffers, checkpoint.buffers);
}

// By all ranks of the job, after the same step: the first one writes the state of the first replica, under
// the names of the whole model.
absl::Status Checkpointer::SaveStages(const Moment& moment) {
  if (worker_.rank > 0) {
    return parts_.strategy.sharded != nullptr ? parts_.strategy.sharded->SendState() : absl::OkStatus();
  }
  bool is_of_step = false;
  PSRING_ASSIGN_OR_RETURN(TrainingCheckpoint checkpoint, ReadState(is_of_step));
  const auto gather = [this](LayoutPart PositionPart::*member, std::vector<float>& values) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(values, parts_.replica->Whole(*parts_.part, member, values.data()));
    return absl::OkStatus();
  };
  PSRING_RETURN_IF_ERROR(gather(&PositionPart::of_parameters, checkpoint.weights));
  for (std::vector<float>& slot : checkpoint.slots) {
    PSRING_RETURN_IF_ERROR(gather(&PositionPart::of_parameters, slot));
  }
  PSRING_RETURN_IF_ERROR(gather(&PositionPart::of_buffers, checkpoint.buffers));
  if (!parts_.is_first_rank) return absl::OkStatus();
  checkpoint.position = PositionAt(moment.step, moment.step);
  ++sequence_;
  return worker_.save(moment.step, [&](CheckpointSink& sink) {
    return WriteCheckpoint(checkpoint, parts_.part->whole, sink);
  });
}

// By all ranks of the job, after the same step: what the first one gives for `stops`.
absl::StatusOr<bool> Checkpointer::FirstRankStops(bool stops) {
  uint32_t value = stops ? 1 : 0;
  if (parts_.same_stages != nullptr) PSRING_RETURN_IF_ERROR(parts_.same_stages->Broadcast(0, &value, 1));
  PSRING_RETURN_IF_ERROR(parts_.replica->Broadcast(0, &value, 1));
  return value != 0;
}

}  // namespace psring
