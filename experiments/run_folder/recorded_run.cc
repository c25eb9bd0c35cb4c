#include "experiments/run_folder/recorded_run.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"
#include "common/base/read_file.h"
#include "common/cli/config_file.h"
#include "common/cli/delays.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/files.h"
#include "common/io/hash.h"
#include "common/io/json_object.h"
#include "common/io/untrusted_json.h"
#include "common/text/peer_text.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr int kLayout = 1;

constexpr size_t kMaxWords = 10'000, kMaxWordBytes = 64 << 10;
constexpr size_t kMaxMarks = 1000, kMaxPathBytes = 4096;
constexpr double kMaxWallS = 1e9;

// Empty if there is no such field.
absl::StatusOr<std::vector<std::string>> WordsAt(const JsonObject& json, const char* key) {
  if (!json.Has(key)) return std::vector<std::string>();
  return json.Texts(key, kMaxWords, kMaxWordBytes);
}

absl::StatusOr<std::vector<FileMark>> MarksAt(const JsonObject& json, const char* key) {
  std::vector<FileMark> marks;
  if (!json.Has(key)) return marks;
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> rows, json.Objects(key, kMaxMarks));
  for (const JsonObject& row : rows) {
    FileMark& mark = marks.emplace_back();
    PSRING_ASSIGN_OR_RETURN(mark.path, row.Text("path", kMaxPathBytes));
    PSRING_ASSIGN_OR_RETURN(mark.hash, row.Text("hash", kMaxPathBytes));
  }
  return marks;
}

// A flag as typed.
struct Flag {
  std::string name;  // canonical, without dashes
  std::string value;
  std::vector<std::string> words;
};

// `takes_value`: names of flags whose value may be the next word.
std::vector<Flag> FlagsOf(const std::vector<std::string>& words, const std::set<std::string>& takes_value) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    Flag flag{.words = {word}};
    if (word.starts_with("--")) {
      const size_t equals = word.find('=');
      flag.name = CanonicalWord(word.substr(2, equals == std::string::npos ? equals : equals - 2));
      if (equals != std::string::npos) flag.value = word.substr(equals + 1);
    } else if (word.size() >= 2 && word[0] == '-') {
      flag.name = word.substr(1, 1);  // "-J out.json", "-Jout.json"
      flag.value = word.substr(2);
    }
    const bool no_value = word.find('=') == std::string::npos && flag.value.empty();
    if (no_value && takes_value.contains(flag.name) && i + 1 < words.size()) {
      flag.value = words[++i];
      flag.words.push_back(flag.value);
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

// Makes the value of a flag that names an input absolute, unless it is a built-in name.
std::string Absolute(const std::string& value, const std::string& name, const std::string& directory) {
  const bool trace = absl::StartsWith(value, kTracePrefix);
  if ((name == "compute_ms" || name == "network_ms") && !trace) return value;
  if (name == "compute_varies" &&
      (value == "none" || absl::StartsWith(value, "normal:") || absl::StartsWith(value, "lognormal:"))) {
    return value;
  }
  if ((name == "workload" || name == "cluster") && value.find('/') == std::string::npos &&
      !absl::EndsWith(value, ".csv") && !absl::EndsWith(value, ".json")) {
    return value;
  }
  const std::string path = trace ? value.substr(std::string(kTracePrefix).size()) : value;
  const std::string full = (std::filesystem::path(directory) / path).lexically_normal().string();
  return trace ? absl::StrCat(kTracePrefix, full) : full;
}

std::string Brief(const Json& json) {
  return PeerText(json.is_string() ? json.get<std::string>() : DumpUntrusted(json));
}

namespace fs = std::filesystem;

// The file that represents an input: itself, or the file that describes a folder; empty: none.
fs::path RepresentativeFile(const fs::path& input) {
  std::error_code error;
  if (!fs::is_directory(input, error)) return fs::is_regular_file(input, error) ? input : "";
  for (const char* name : {"manifest.json", kPositionFile}) {
    if (fs::exists(input / name, error)) return input / name;
  }
  return "";
}

}  // namespace

absl::StatusOr<RecordedRun> RecordedRunFromJson(const std::string& text) {
  const absl::StatusOr<JsonObject> parsed = JsonObject::Parse(text, kMaxTextBytes, "its manifest.json");
  if (!parsed.ok()) return absl::DataLossError(parsed.status().message());
  const JsonObject& json = *parsed;
  if (!json.Has("schema_version")) {
    return absl::InvalidArgumentError("its manifest.json has no schema_version: it is not a run's");
  }
  PSRING_ASSIGN_OR_RETURN(const int layout, json.WholeNumber("schema_version", 0, INT32_MAX));
  if (layout != kLayout) {
    return InvalidArgument("its manifest has layout ", layout, "; this psring supports ", kLayout,
                           "; use the psring that wrote it");
  }
  RecordedRun run{.json = text};
  PSRING_ASSIGN_OR_RETURN(run.verb, json.Text("verb", kMaxWordBytes));
  PSRING_ASSIGN_OR_RETURN(run.command_line, json.Texts("command_line", kMaxWords, kMaxWordBytes));
  if (run.command_line.size() < 2 || run.command_line[1] != run.verb ||
      (run.verb != "compare" && run.verb != "train" && run.verb != "bench" && run.verb != "predict")) {
    return absl::InvalidArgumentError("its manifest has no command line of compare, train, bench or predict");
  }
  PSRING_ASSIGN_OR_RETURN(run.provenance.working_directory,
                          json.Text("working_directory", kMaxPathBytes, ""));
  PSRING_ASSIGN_OR_RETURN(run.provenance.binaries, MarksAt(json, "binaries"));
  PSRING_ASSIGN_OR_RETURN(run.provenance.inputs, MarksAt(json, "inputs"));
  PSRING_ASSIGN_OR_RETURN(run.provenance.settled, WordsAt(json, "settled"));
  if (json.Has("data")) {
    PSRING_ASSIGN_OR_RETURN(const JsonObject data, json.Object("data"));
    PSRING_ASSIGN_OR_RETURN(run.provenance.data_flags, WordsAt(data, "trainer_flags"));
    PSRING_ASSIGN_OR_RETURN(run.provenance.data_hash, data.Text("hash", kMaxWordBytes, ""));
  }
  PSRING_ASSIGN_OR_RETURN(run.started_utc, json.Text("started_utc", kMaxPathBytes, ""));
  PSRING_ASSIGN_OR_RETURN(run.wall_s, json.Number("wall_s", 0, kMaxWallS, 0));
  run.finished = json.Bool("finished").value_or(false);
  run.tells_how_it_ended = json.Has("ended");
  if (const auto link = json.Object("link"); link.ok()) {
    run.shaping = link->Text("shaping", kMaxPathBytes).value_or("");
  }
  if (run.provenance.working_directory.empty() || run.provenance.binaries.empty()) {
    return InvalidArgument("an earlier psring wrote it, without its inputs; its command line was: ",
                           ShellText(run.command_line));
  }
  return run;
}

Again MakeAgain(const RecordedRun& recorded, const std::string& run) {
  // Flags whose value may be the next word.
  std::set<std::string> takes_value = {
      "J",          "bind",     "checkpoint_dir", "cluster", "compute_ms",  "compute_varies",
      "config",     "data_dir", "interface",      "like",    "master_addr", "master_port",
      "network_ms", "out",      "output_file",    "plan_of", "profile",     "resume",
      "text",       "tls",      "workload"};
  std::set<std::string> replaced = {"resume", "plan_of"};
  // --plan_of repeats the rounds that fitted into the budget.
  if (!run.empty() && recorded.verb == "compare") replaced.insert("time_budget");
  for (const Flag& flag : FlagsOf(recorded.provenance.settled, {})) replaced.insert(flag.name);
  takes_value.insert(replaced.begin(), replaced.end());

  Again again{.arguments = {recorded.verb}};
  const auto add = [&](const Flag& flag) {
    switch (ReachOf(flag.name, flag.value)) {
      case FlagReach::kOutside:
        if (flag.name != "out") again.left_out.push_back(ShellText(flag.words));
        break;
      case FlagReach::kInput:
        again.arguments.push_back(absl::StrCat(
            "--", flag.name, "=", Absolute(flag.value, flag.name, recorded.provenance.working_directory)));
        break;
      case FlagReach::kValue:
        again.arguments.insert(again.arguments.end(), flag.words.begin(), flag.words.end());
    }
  };
  const std::vector<std::string> typed(recorded.command_line.begin() + 2, recorded.command_line.end());
  for (const Flag& flag : FlagsOf(typed, takes_value)) {
    if (!replaced.contains(flag.name)) add(flag);
  }
  for (const Flag& flag : FlagsOf(recorded.provenance.settled, {})) add(flag);
  if (!run.empty() && (recorded.verb == "compare" || recorded.verb == "train")) {
    again.arguments.push_back(absl::StrCat("--plan_of=", run));
  }
  return again;
}

std::string ConfigOf(const RecordedRun& recorded, const std::string& run) {
  const Again again = MakeAgain(recorded, run);
  std::string text = absl::StrCat("# Repeats this run: psring ", recorded.verb, " --config FILE\n");
  for (const std::string& flag : again.left_out) absl::StrAppend(&text, "# omitted: ", flag, "\n");
  const std::vector<std::string>& words = again.arguments;
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    std::string name = words[i].substr(0, equals), value = "true";
    double number = 0;
    if (equals != std::string::npos) {
      value = words[i].substr(equals + 1);
    } else if (i + 1 < words.size() &&
               (words[i + 1].empty() || words[i + 1][0] != '-' || absl::SimpleAtod(words[i + 1], &number))) {
      value = words[++i];
    }
    absl::StrAppend(&text, ConfigLine(CanonicalWord(name.substr(name.starts_with("--") ? 2 : 1)), value));
  }
  return text;
}

std::vector<std::string> Differences(const RecordedRun& recorded, const std::string& now) {
  const Json then = ParseUntrusted(recorded.json), here = ParseUntrusted(now);
  std::vector<std::string> lines;
  for (const auto& [part, name] : {std::pair{"machine", "machine"}, {"versions", "psring"}}) {
    for (const auto& [key, value] : FieldAt(here, part).items()) {
      const Json& was = FieldAt(FieldAt(then, part), key.c_str());
      if (was.is_null() || was == value) continue;
      lines.push_back(absl::StrCat(name, ": ", key, " ", Brief(was), " then, ", Brief(value), " now"));
    }
  }
  std::vector<std::string> programs;
  for (const Json& mark : ListAt(here, "binaries")) {
    for (const FileMark& was : recorded.provenance.binaries) {
      if (was.path == TextAt(mark, "path") && was.hash != TextAt(mark, "hash")) programs.push_back(was.path);
    }
  }
  if (!programs.empty()) {
    lines.push_back(
        absl::StrCat("programs: ", absl::StrJoin(programs, ", "), " were built from other sources"));
  }
  return lines;
}

absl::StatusOr<std::string> LatestRun() {
  constexpr char kLatest[] = "runs/latest";
  std::error_code error;
  if (std::filesystem::is_directory(kLatest, error)) return std::string(kLatest);
  return InvalidTr("name a run's folder; there is no $0 in this folder", kLatest);
}

std::string CommandName() {
  const char* const typed = std::getenv("PSRING_COMMAND");  // set by ./run
  return typed == nullptr || *typed == 0 ? "psring" : ShellText({typed});
}

std::string ShellText(const std::vector<std::string>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const std::string& word) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
      return std::isalnum(c) != 0 || absl::StrContains("-_=.,:/+@%", std::string(1, static_cast<char>(c)));
    });
    absl::StrAppend(out, plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'"));
  });
}

absl::StatusOr<FileMark> MarkFile(const std::string& path) {
  PSRING_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxRecordBytes));
  return FileMark{path, HashBytes(bytes.data(), bytes.size())};
}

absl::StatusOr<Provenance> DescribeProvenance(const std::vector<std::string>& binaries,
                                              const std::vector<std::string>& inputs) {
  Provenance provenance;
  std::error_code error;
  provenance.working_directory = fs::current_path(error).string();
  PSRING_ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  std::vector<std::string> programs = {self};
  programs.insert(programs.end(), binaries.begin(), binaries.end());
  for (const std::string& program : programs) {
    PSRING_ASSIGN_OR_RETURN(FileMark mark, MarkFile(program));
    mark.path = fs::path(program).filename().string();
    provenance.binaries.push_back(std::move(mark));
  }
  for (const std::string& input : inputs) {
    const fs::path file = RepresentativeFile(input);
    if (input.empty() || file.empty()) continue;
    PSRING_ASSIGN_OR_RETURN(provenance.inputs.emplace_back(), MarkFile(fs::absolute(file, error).string()));
  }
  return provenance;
}

}  // namespace psring
