#include "experiments/design/launches.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/files.h"
#include "common/io/json_text.h"
#include "common/measure/records.h"
#include "common/text/translate.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr char kName[] = "launch.json";
constexpr size_t kMaxFlags = 1024, kMaxFlagBytes = 64 << 10;
constexpr int kMaxProcesses = 1 << 16;
constexpr double kLeastScale = 1e-9;

constexpr int kMaxRecordedRounds = 1'000'000, kMaxPlannedSteps = 1'000'000'000;
constexpr size_t kMaxConfigurations = 10'000, kMaxPathBytes = 4096;

absl::StatusOr<std::vector<LaunchNote>> NotesOf(const JsonObject& part) {
  std::vector<LaunchNote> notes;
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> configurations,
                          part.Objects("configurations", kMaxConfigurations));
  for (const JsonObject& configuration : configurations) {
    PSRING_ASSIGN_OR_RETURN(notes.emplace_back(), LaunchNoteFrom(configuration));
  }
  return notes;
}

bool SameLayout(const LaunchNote& note, const TrainingOptions& training) {
  if (FlagOf(note, "--pp", "1") != absl::StrCat(training.pp)) return false;
  if (FlagOf(note, "--tp", "1") != absl::StrCat(training.tp)) return false;
  if (FlagOf(note, "--cp", "1") != absl::StrCat(training.cp)) return false;
  if (FlagOf(note, "--context_parallel", kDefaultContextParallel.name) != training.context_parallel)
    return false;
  return training.pp == 1 || (FlagOf(note, "--program", "1f1b") == training.program &&
                              FlagOf(note, "--micro_batches", "1") == absl::StrCat(training.micro_batches) &&
                              FlagOf(note, "--cuts", "") == training.cuts &&
                              FlagOf(note, "--copy_streams", "2") == absl::StrCat(training.copy_streams));
}

const LaunchNote* NoteFor(const std::vector<LaunchNote>& notes, const Configuration& configuration) {
  for (const LaunchNote& note : notes) {
    if (note.strategy == configuration.strategy.name && note.workers == configuration.workers &&
        note.servers == configuration.servers() &&
        FlagOf(note, "--server_wire", "grpc") == configuration.training.server_wire &&
        SameLayout(note, configuration.training)) {
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
    return InvalidArgument("--plan_of: that run has no ", configuration.name(), "; omit --plan_of");
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

LaunchNote NoteOf(const Configuration& configuration) {
  return {.strategy = configuration.strategy.name,
          .workers = configuration.workers,
          .servers = configuration.servers(),
          .trainer_flags = TrainingArguments(configuration.training),
          .time_scale = configuration.training.time_scale};
}

std::string ToJson(const LaunchNote& note) {
  return JsonText(OrderedJson{{"strategy", note.strategy},
                              {"workers", note.workers},
                              {"servers", note.servers},
                              {"trainer_flags", note.trainer_flags},
                              {"time_scale", note.time_scale}},
                  2) +
         "\n";
}

absl::StatusOr<LaunchNote> LaunchNoteFrom(const JsonObject& json) {
  LaunchNote note;
  PSRING_ASSIGN_OR_RETURN(note.strategy, json.Text("strategy", kMaxFlagBytes));
  PSRING_ASSIGN_OR_RETURN(note.workers, json.WholeNumber("workers", 1, kMaxProcesses, 1));
  PSRING_ASSIGN_OR_RETURN(note.servers, json.WholeNumber("servers", 0, kMaxProcesses, 0));
  PSRING_ASSIGN_OR_RETURN(note.trainer_flags, json.Texts("trainer_flags", kMaxFlags, kMaxFlagBytes));
  PSRING_ASSIGN_OR_RETURN(note.time_scale, json.Number("time_scale", kLeastScale, 1 / kLeastScale, 1));
  return note;
}

absl::StatusOr<LaunchNote> LaunchNoteFromJson(const std::string& text, const std::string& name) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxTextBytes, name));
  return LaunchNoteFrom(json);
}

std::string FlagOf(const LaunchNote& note, const std::string& flag, const std::string& otherwise) {
  const std::string prefix = absl::StrCat(flag, "=");
  for (const std::string& argument : note.trainer_flags) {
    if (absl::StartsWith(argument, prefix)) return argument.substr(prefix.size());
  }
  return otherwise;
}

absl::StatusOr<std::vector<LaunchNote>> ListLaunches(const std::string& run) {
  std::error_code error;
  std::vector<fs::path> found;
  if (fs::exists(fs::path(run) / kName, error)) {
    found.push_back(fs::path(run) / kName);
  } else {
    for (fs::recursive_directory_iterator at(fs::path(run) / "records", error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().filename() == kName) found.push_back(at->path());
    }
  }
  if (found.empty()) {
    return absl::NotFoundError(
        Tr("'$0' is not a run folder: it has no records/*/*/$1; name a folder under runs/", run, kName));
  }
  std::ranges::sort(found);
  std::vector<LaunchNote> notes;
  for (const fs::path& path : found) {
    PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path.string()));
    PSRING_ASSIGN_OR_RETURN(notes.emplace_back(), LaunchNoteFromJson(text, path.string()));
    notes.back().folder = path.parent_path().string();
  }
  return notes;
}

absl::StatusOr<RecordedPlan> RecordedPlanFromJson(const std::string& manifest) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(manifest, kMaxTextBytes, "its manifest.json"));
  if (!json.Has("cost") || !json.Has("accuracy")) {
    return absl::InvalidArgumentError("its manifest has no plan of compare or train");
  }
  PSRING_ASSIGN_OR_RETURN(const JsonObject cost, json.Object("cost"));
  PSRING_ASSIGN_OR_RETURN(const JsonObject accuracy, json.Object("accuracy"));
  RecordedPlan plan;
  PSRING_ASSIGN_OR_RETURN(plan.rounds_planned, cost.WholeNumber("rounds_planned", 0, kMaxRecordedRounds));
  PSRING_ASSIGN_OR_RETURN(plan.rounds_done, cost.WholeNumber("rounds_done", 0, kMaxRecordedRounds));
  PSRING_ASSIGN_OR_RETURN(plan.warmup_steps, cost.WholeNumber("warmup_steps", 0, kMaxPlannedSteps));
  PSRING_ASSIGN_OR_RETURN(plan.steps, cost.WholeNumber("steps", 0, kMaxPlannedSteps));
  PSRING_ASSIGN_OR_RETURN(plan.trainings_each, accuracy.WholeNumber("trainings_each", 0, kMaxRecordedRounds));
  // A run that was interrupted in its first round has only planned rounds.
  plan.rounds = plan.rounds_done == 0 ? plan.rounds_planned : plan.rounds_done;
  if (plan.rounds == 0) return absl::InvalidArgumentError("its manifest has no rounds");
  PSRING_ASSIGN_OR_RETURN(plan.cost, NotesOf(cost));
  PSRING_ASSIGN_OR_RETURN(plan.accuracy, NotesOf(accuracy));
  if (accuracy.Has("trainings_done")) {
    PSRING_ASSIGN_OR_RETURN(plan.trainings_done,
                            accuracy.Texts("trainings_done", kMaxConfigurations, kMaxPathBytes));
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
