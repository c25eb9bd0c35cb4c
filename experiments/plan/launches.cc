#include "experiments/plan/launches.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
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
  std::sort(found.begin(), found.end());
  std::vector<LaunchNote> notes;
  for (const fs::path& path : found) {
    PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path.string()));
    PSRING_ASSIGN_OR_RETURN(notes.emplace_back(), LaunchNoteFromJson(text, path.string()));
    notes.back().folder = path.parent_path().string();
  }
  return notes;
}

}  // namespace psring
