// Where a training goes on from, and what it keeps.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

constexpr char kEnd[] = "end";     // the moment of one that was told to end
constexpr char kKept[] = "/kept";  // behind a moment's name

// For the parts of others. A server's synchronous worker that does not come has perhaps gone back with the
// server, as this one will.
constexpr absl::Duration kPatience = absl::Seconds(5);
// They may have to be told to end, too (trainer_main.cc).
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
                       residuals, model_->parameters());
  for (const std::string& note : resume_.notes) {
    if (worker_.rank == 0) worker_.on_note(note);
  }
  if (!resume_.worker_steps.empty()) {
    sample_shift_ = resume_.worker_steps[static_cast<size_t>(worker_.rank)] - resume_.step;
  }
  return absl::OkStatus();
}

absl::Status Training::LoadCheckpoint(std::vector<float>& weights) {
  if (resume_.with_residuals) {
    PSRING_RETURN_IF_ERROR(DecodeResidual(*worker_.resume, model_->parameters(), residual_));
  }
  if (worker_.resume->model.empty()) return absl::OkStatus();  // it comes from rank 0
  PSRING_ASSIGN_OR_RETURN(loaded_, DecodeCheckpoint(*worker_.resume, model_->parameters()));
  weights = std::move(loaded_.weights);
  if (!resume_.with_slots) loaded_.slots.clear();
  return absl::OkStatus();
}

TrainingPosition Training::PositionAt(int64_t next, int64_t updates) const {
  return {.model = options_.model,
          .data = options_.data,
          .strategy = options_.strategy,
          .asynchronous = IsAsynchronous(*strategy_row_),
          .data_count = worker_.data.train.count(),
          .drawn_batch = plan_.drawn_batch,
          .workers = worker_.world_size,
          .seed = options_.seed,
          .wire = options_.wire,
          .optimizer = updates_.optimizer,
          .schedule = updates_.schedule,
          .flags = TrainingArguments(options_),
          .sequence = sequence_ + 1,
          .step = next,
          .updates = updates,
          .samples = IsAsynchronous(*strategy_row_) ? SamplesOf(updates) : global_samples_,
          .epoch = next / sampler_->steps_per_epoch(),
          .epoch_samples = next % sampler_->steps_per_epoch() * plan_.drawn_batch,
          .ready_order = result_.ddp.ready_order};
}

// What this worker alone has when it goes on with `next`.
WorkerPart Training::OwnPart(int64_t next) const {
  const ConstSpan residual = strategy_->ResidualBefore(next);
  return {.next = next + sample_shift_,
          .residual = residual.count > 0 ? EncodeResidual(residual, model_->parameters()) : ""};
}

// On all ranks but 0. An asynchronous worker stands still until rank 0 has what its updates have led to; a
// server's synchronous one cannot get ahead, and goes on at once.
absl::Status Training::LeavePart(const Moment& moment) {
  if (worker_.parts == nullptr) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(worker_.parts->Leave(moment.name, OwnPart(moment.next)));
  const bool alone = IsAsynchronous(*strategy_row_);
  if (!alone && strategy_row_->needs == Needs::kParameterServer) return absl::OkStatus();
  const absl::Status met = worker_.parts->MeetRank(worker_.rank, moment.name);
  if (!alone) return met;
  // Without rank 0 there are no checkpoints, and training goes on.
  if (met.ok()) (void)worker_.parts->MeetRank(worker_.rank, absl::StrCat(moment.name, kKept));
  return absl::OkStatus();
}

// A synchronous strategy's rank that has failed because rank 0 has stopped still has what that one's
// checkpoint needs: both have made the same steps, and this one has perhaps begun the next.
void Training::LeavePartForTheEnd() {
  if (worker_.parts == nullptr || worker_.rank == 0 || IsAsynchronous(*strategy_row_)) return;
  if (const std::optional<int64_t> next = worker_.parts->StopsBefore(); next.has_value()) {
    (void)worker_.parts->Leave(kEnd, OwnPart(*next));
  }
}

bool Training::AbortEndsTheProcess() const {
  return worker_.group != nullptr && worker_.group->info().backend == "mpi";
}

// On rank 0: by rank, what has come. `meets`: the others come to this moment, or are lost.
std::vector<std::optional<WorkerPart>> Training::TakeParts(const Moment& moment, bool meets) {
  std::vector<std::optional<WorkerPart>> parts(static_cast<size_t>(worker_.world_size));
  parts[0] = OwnPart(moment.next);
  if (worker_.parts == nullptr) return parts;
  // Workers of which some are spare, or that push alone, are not all at one step.
  const bool alike = !IsAsynchronous(*strategy_row_) && SpareWorkers(options_.strategy) == 0;
  // Ranks of MPI cannot be called out of a step.
  const absl::Duration patience = !moment.stops           ? kPatience
                                  : AbortEndsTheProcess() ? absl::ZeroDuration()
                                                          : kPatienceAtTheEnd;
  const absl::Time deadline = absl::Now() + patience;
  for (int rank = 1; rank < worker_.world_size; ++rank) {
    absl::Status came = meets ? worker_.parts->MeetRank(rank, moment.name) : absl::OkStatus();
    if (came.ok()) {
      absl::StatusOr<WorkerPart> part =
          worker_.parts->Take(rank, moment.name, alike ? std::optional(moment.next) : std::nullopt, deadline);
      came = part.status();
      if (part.ok()) parts[static_cast<size_t>(rank)] = *std::move(part);
    }
    if (!came.ok()) {
      worker_.on_note(absl::StrCat("the checkpoint of step ", moment.step, " goes without what rank ", rank,
                                   " alone has: ", came.message()));
    }
  }
  return parts;
}

// On rank 0.
absl::Status Training::SaveCheckpoint(const Moment& moment) {
  const bool alone = IsAsynchronous(*strategy_row_);
  const bool of_a_group = strategy_row_->needs == Needs::kProcessGroup;
  std::vector<std::optional<WorkerPart>> parts;
  // Workers that push alone have stopped when their parts are here: so the server has their steps, and no
  // others.
  if (alone) parts = TakeParts(moment, /*meets=*/!moment.stops);

  const size_t count = weights_.span().count;
  TrainingCheckpoint checkpoint{.weights = std::vector<float>(count)};
  std::vector<Span> slots;
  checkpoint.slots.resize(OptimizerSlots(updates_.optimizer.kind).size());
  for (std::vector<float>& slot : checkpoint.slots) {
    slot.resize(count);
    slots.push_back({slot.data(), count});
  }
  PSRING_ASSIGN_OR_RETURN(const bool is_of_step, strategy_->Save({checkpoint.weights.data(), count}, slots));
  if (!is_of_step) return absl::OkStatus();

  if (!alone && moment.stops && worker_.parts != nullptr) {
    // They are in the next step, and wait for this rank.
    PSRING_RETURN_IF_ERROR(worker_.parts->SayThatItStops(moment.next));
    if (!AbortEndsTheProcess()) strategy_->Abort(absl::CancelledError("rank 0 was told to end"));
  }
  if (!alone) parts = TakeParts(moment, /*meets=*/of_a_group && !moment.stops);

  checkpoint.position = PositionAt(moment.step, alone ? version_ : moment.step);
  if (alone && std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.has_value(); })) {
    std::vector<int64_t> steps;
    for (const std::optional<WorkerPart>& part : parts) steps.push_back(part->next);
    const int64_t updates = std::accumulate(steps.begin(), steps.end(), int64_t{0});  // one a step
    checkpoint.position = PositionAt(updates / worker_.world_size, updates);
    checkpoint.position.worker_steps = std::move(steps);
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (!parts[rank].has_value() || parts[rank]->residual.empty()) continue;
    checkpoint.worker_files.emplace_back(WorkerFile(static_cast<int>(rank)),
                                         std::move(parts[rank]->residual));
  }
  PSRING_RETURN_IF_ERROR(worker_.save(moment.step, EncodeCheckpoint(checkpoint, model_->parameters())));
  saved_step_ = moment.step;
  ++sequence_;
  for (size_t rank = 1; alone && !moment.stops && worker_.parts != nullptr && rank < parts.size(); ++rank) {
    if (!parts[rank].has_value()) continue;
    (void)worker_.parts->MeetRank(static_cast<int>(rank), absl::StrCat(moment.name, kKept));
  }
  return absl::OkStatus();
}

// Every --checkpoint_every steps, and when this rank is told to end. `before` and `done`: what counts as
// steps for that; `next`: this worker's own.
absl::Status Training::CheckpointIfDue(int64_t before, int64_t done, int64_t next) {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  const int64_t every = options_.checkpoint_every;
  const bool stops = worker_.stops();
  const bool due = every > 0 && done / every > before / every && done < plan_.total_steps();
  if (due) {
    const Moment moment{.name = absl::StrCat("step", done / every * every), .step = done, .next = next};
    PSRING_RETURN_IF_ERROR(worker_.rank == 0 ? SaveCheckpoint(moment) : LeavePart(moment));
  }
  // What a server's worker fetches is whole by itself, unless spare workers go on meanwhile; the others of a
  // group would only wait in the next step.
  const bool waits = strategy_row_->needs != Needs::kParameterServer || SpareWorkers(options_.strategy) > 0;
  if (due && waits) PSRING_RETURN_IF_ERROR(worker_.barrier());
  if (!stops) return absl::OkStatus();
  const Moment end{.name = kEnd, .step = done, .next = next, .stops = true};
  if (worker_.rank == 0) {
    if (saved_step_ != done) PSRING_RETURN_IF_ERROR(SaveCheckpoint(end));
    return absl::CancelledError(absl::StrCat("told to end; a checkpoint of step ", done, " is kept"));
  }
  // The others of a synchronous strategy end when rank 0 has; until then its step needs them.
  if (!IsAsynchronous(*strategy_row_)) return absl::OkStatus();
  if (worker_.parts != nullptr) PSRING_RETURN_IF_ERROR(worker_.parts->Leave(kEnd, OwnPart(next)));
  PSRING_RETURN_IF_ERROR(strategy_->Collect(weights_.span()));
  return absl::CancelledError("told to end");
}

// When all have made their last step.
absl::Status Training::LastCheckpoint(int64_t next) {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  const Moment last{.name = "last", .step = plan_.total_steps(), .next = next};
  return worker_.rank == 0 ? SaveCheckpoint(last) : LeavePart(last);
}

// What a checkpoint's steps drew need not be what as many steps of this run would have.
int64_t Training::SamplesBefore(int64_t step) const {
  return resume_.samples + plan_.SamplesBefore(step) - plan_.SamplesBefore(resume_.step);
}

int64_t Training::SamplesOf(int64_t version) const {
  const int workers = worker_.world_size;
  return resume_.samples + plan_.SamplesIn(version, workers) -
         plan_.SamplesIn(resume_.step * workers + resume_.beyond, workers);
}

}  // namespace psring
