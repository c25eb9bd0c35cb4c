#include "experiments/plan/launches.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/measure/records.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr char kName[] = "launch.json";

}  // namespace

LaunchNote NoteOf(const Configuration& configuration) {
  return {.strategy = configuration.strategy.name,
          .workers = configuration.workers,
          .servers = configuration.servers(),
          .trainer_flags = TrainingArguments(configuration.training),
          .time_scale = configuration.training.time_scale};
}

std::string ToJson(const LaunchNote& note) {
  return OrderedJson{{"strategy", note.strategy},
                     {"workers", note.workers},
                     {"servers", note.servers},
                     {"trainer_flags", note.trainer_flags},
                     {"time_scale", note.time_scale}}
             .dump(2) +
         "\n";
}

absl::StatusOr<LaunchNote> LaunchNoteFromJson(const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* key) { return !json.contains(key) || json[key].is_number_integer(); };
  if (!json.is_object() || !json.contains("strategy") || !json["strategy"].is_string() ||
      !json.contains("trainer_flags") || !json["trainer_flags"].is_array() || !number("workers") ||
      !number("servers")) {
    return absl::InvalidArgumentError("this is not a launch.json of psring");
  }
  LaunchNote note{.strategy = json.value("strategy", ""),
                  .workers = json.value("workers", 1),
                  .servers = json.value("servers", 0)};
  if (const auto scale = json.find("time_scale"); scale != json.end() && scale->is_number()) {
    note.time_scale = scale->get<double>();
  }
  for (const OrderedJson& flag : json["trainer_flags"]) {
    if (flag.is_string()) note.trainer_flags.push_back(flag.get<std::string>());
  }
  return note;
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
    return absl::NotFoundError(absl::StrCat("'", run, "' is not a run folder: it has no records/*/*/", kName,
                                            "; name a folder under runs/"));
  }
  std::sort(found.begin(), found.end());
  std::vector<LaunchNote> notes;
  for (const fs::path& path : found) {
    PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path.string()));
    absl::StatusOr<LaunchNote> note = LaunchNoteFromJson(text);
    if (!note.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", note.status().message()));
    }
    note->folder = path.parent_path().string();
    notes.push_back(*std::move(note));
  }
  return notes;
}

}  // namespace psring
