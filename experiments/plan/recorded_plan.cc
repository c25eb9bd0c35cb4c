#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/plan/launches.h"

namespace psring {
namespace {

using Json = nlohmann::json;

int NumberAt(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<int>() : 0;
}

absl::StatusOr<std::vector<LaunchNote>> NotesOf(const Json& part) {
  std::vector<LaunchNote> notes;
  const auto configurations = part.find("configurations");
  if (configurations == part.end() || !configurations->is_array()) return notes;
  for (const Json& configuration : *configurations) {
    PSRING_ASSIGN_OR_RETURN(notes.emplace_back(), LaunchNoteFromJson(configuration.dump()));
  }
  return notes;
}

const LaunchNote* NoteFor(const std::vector<LaunchNote>& notes, const Configuration& configuration) {
  for (const LaunchNote& note : notes) {
    if (note.strategy == configuration.strategy.name && note.workers == configuration.workers &&
        note.servers == configuration.servers()) {
      return &note;
    }
  }
  return nullptr;
}

// Copies what the planner fits, and the --compute_ms that it measures for --clock virtual.
absl::Status TakeFitted(const std::vector<LaunchNote>& notes, const TrainingOptions& asked,
                        Configuration& configuration) {
  const LaunchNote* note = NoteFor(notes, configuration);
  if (note == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--plan_of: that run has no ", configuration.name(), "; omit --plan_of"));
  }
  TrainingOptions& training = configuration.training;
  const auto number = [&](const char* flag, int64_t& value) {
    (void)absl::SimpleAtoi(FlagOf(*note, flag, "0"), &value);
  };
  if (asked.steps == 0) number("--steps", training.steps);
  if (asked.samples == 0 && asked.epochs == 0) number("--samples", training.samples);
  if (asked.warmup_steps == 0) number("--warmup_steps", training.warmup_steps);
  if (asked.eval_every == 0) number("--eval_every", training.eval_every);
  if (training.clock == "virtual" && training.compute_ms.empty()) {
    training.compute_ms = FlagOf(*note, "--compute_ms", "");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RecordedPlan> RecordedPlanFromJson(const std::string& manifest) {
  const Json json = Json::parse(manifest, nullptr, false);
  if (!json.is_object() || !json.contains("cost") || !json["cost"].is_object() ||
      !json.contains("accuracy") || !json["accuracy"].is_object()) {
    return absl::InvalidArgumentError("its manifest has no plan of compare or train");
  }
  RecordedPlan plan{.rounds = NumberAt(json["cost"], "rounds_done"),
                    .rounds_planned = NumberAt(json["cost"], "rounds_planned"),
                    .rounds_done = NumberAt(json["cost"], "rounds_done"),
                    .warmup_steps = NumberAt(json["cost"], "warmup_steps"),
                    .steps = NumberAt(json["cost"], "steps"),
                    .trainings_each = NumberAt(json["accuracy"], "trainings_each")};
  // A run that was interrupted in its first round has only planned rounds.
  if (plan.rounds == 0) plan.rounds = plan.rounds_planned;
  if (plan.rounds == 0) return absl::InvalidArgumentError("its manifest has no rounds");
  PSRING_ASSIGN_OR_RETURN(plan.cost, NotesOf(json["cost"]));
  PSRING_ASSIGN_OR_RETURN(plan.accuracy, NotesOf(json["accuracy"]));
  if (const auto done = json["accuracy"].find("trainings_done");
      done != json["accuracy"].end() && done->is_array()) {
    for (const Json& training : *done) {
      if (training.is_string()) plan.trainings_done.push_back(training.get<std::string>());
    }
  }
  return plan;
}

absl::Status TakeRecordedPlan(const RecordedPlan& recorded, const CompareOptions& asked, Plan& plan) {
  for (Configuration& configuration : plan.cost) {
    PSRING_RETURN_IF_ERROR(TakeFitted(recorded.cost, asked.training, configuration));
  }
  for (Configuration& configuration : plan.accuracy) {
    PSRING_RETURN_IF_ERROR(TakeFitted(recorded.accuracy, asked.training, configuration));
  }
  if (asked.repeats == 0) plan.rounds = recorded.rounds;
  if (asked.training.warmup_steps == 0) plan.warmup_steps = recorded.warmup_steps;
  if (asked.training.steps == 0) plan.steps = recorded.steps;
  plan.rounds_fitted = plan.accuracy_fitted = false;
  return absl::OkStatus();
}

absl::Status ContinueRecordedPlan(const RecordedPlan& recorded, const CompareOptions& asked, Plan& plan) {
  RecordedPlan whole = recorded;
  whole.rounds = recorded.rounds_planned;
  // A short time budget may have removed the accuracy part.
  if (recorded.accuracy.empty()) plan.accuracy.clear();
  PSRING_RETURN_IF_ERROR(TakeRecordedPlan(whole, asked, plan));
  plan.accuracy_repeats = recorded.trainings_each;
  return absl::OkStatus();
}

}  // namespace psring
