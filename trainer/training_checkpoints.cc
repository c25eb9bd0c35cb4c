// Where a training goes on from, and what it keeps.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "trainer/training.h"

namespace psring {

absl::Status Training::PlanResumption() {
  PSRING_ASSIGN_OR_RETURN(const TrainingPosition from, DecodePosition(*worker_.resume));
  sequence_ = std::max(from.sequence, worker_.resume->sequence);
  resume_ = PlanResume(from, PositionAt(0), sampler_->steps_per_epoch(), worker_.resume->has_optimizer,
                       model_->parameters());
  for (const std::string& note : resume_.notes) {
    if (worker_.rank == 0) worker_.on_note(note);
  }
  return absl::OkStatus();
}

absl::Status Training::LoadCheckpoint(std::vector<float>& weights) {
  if (worker_.resume->model.empty()) return absl::OkStatus();  // it comes from rank 0
  PSRING_ASSIGN_OR_RETURN(loaded_, DecodeCheckpoint(*worker_.resume, model_->parameters()));
  weights = std::move(loaded_.weights);
  if (!resume_.with_slots) loaded_.slots.clear();
  return absl::OkStatus();
}

TrainingPosition Training::PositionAt(int64_t next) const {
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
          .updates = IsAsynchronous(*strategy_row_) ? version_ : next,
          .samples = global_samples_,
          .epoch = next / sampler_->steps_per_epoch(),
          .epoch_samples = next % sampler_->steps_per_epoch() * plan_.drawn_batch,
          .ready_order = result_.ddp.ready_order};
}

absl::Status Training::SaveCheckpoint(int64_t next) {
  const size_t count = weights_.span().count;
  TrainingCheckpoint checkpoint{.position = PositionAt(next), .weights = std::vector<float>(count)};
  std::vector<Span> slots;
  checkpoint.slots.resize(OptimizerSlots(updates_.optimizer.kind).size());
  for (std::vector<float>& slot : checkpoint.slots) {
    slot.resize(count);
    slots.push_back({slot.data(), count});
  }
  PSRING_ASSIGN_OR_RETURN(const bool is_of_step, strategy_->Save({checkpoint.weights.data(), count}, slots));
  if (!is_of_step) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(worker_.save(next, EncodeCheckpoint(checkpoint, model_->parameters())));
  saved_step_ = next;
  ++sequence_;
  return absl::OkStatus();
}

// Every --checkpoint_every steps, and when this rank is told to end.
absl::Status Training::CheckpointIfDue(int64_t done_before, int64_t done) {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  const int64_t every = options_.checkpoint_every;
  const bool stops = worker_.stops();
  const bool due = every > 0 && done / every > done_before / every && done < plan_.total_steps();
  if (worker_.rank == 0 && (due || stops)) PSRING_RETURN_IF_ERROR(SaveCheckpoint(done));
  // What a server's worker fetches is whole by itself, unless spare workers go on meanwhile; the others of a
  // group would only wait in the next step.
  const bool waits = strategy_row_->needs != Needs::kParameterServer || SpareWorkers(options_.strategy) > 0;
  if (due && waits) PSRING_RETURN_IF_ERROR(worker_.barrier());
  if (!stops) return absl::OkStatus();
  if (worker_.rank == 0)
    return absl::CancelledError(absl::StrCat("told to end; a checkpoint of step ", done, " is kept"));
  // The others of a synchronous strategy end when rank 0 has; until then its step needs them.
  if (!IsAsynchronous(*strategy_row_)) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(strategy_->Collect(weights_.span()));
  return absl::CancelledError("told to end");
}

// What a checkpoint's steps drew need not be what as many steps of this run would have.
int64_t Training::SamplesBefore(int64_t step) const {
  return resume_.samples + plan_.SamplesBefore(step) - plan_.SamplesBefore(resume_.step);
}

int64_t Training::SamplesOfVersion() const {
  return resume_.samples + plan_.SamplesIn(version_, worker_.world_size) - plan_.SamplesBefore(resume_.step);
}

}  // namespace psring
