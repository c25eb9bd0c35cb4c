#include "experiments/page/run_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/io/files.h"
#include "common/text/translate.h"
#include "experiments/page/digests.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

using Json = UntrustedJson;

constexpr size_t kMaxCsvLines = 2000;
constexpr double kSchemaVersion = 1;

// Reads the files of one folder, or `files` if there are any, and lists those that are missing.
class Reader {
 public:
  Reader(fs::path folder, const std::map<std::string, std::string>& files)
      : folder_(std::move(folder)), files_(files) {}

  // Empty if the file cannot be read; it is then listed, unless it is absent and not `expected`.
  std::string Text(const char* name, bool expected, uint64_t most_bytes = kMaxTextBytes) {
    const auto given = files_.find(name);
    if (given != files_.end()) return given->second;
    absl::StatusOr<std::string> text =
        files_.empty() ? TextOf(folder_ / name, most_bytes) : absl::NotFoundError("missing");
    if (!text.ok() && (expected || !absl::IsNotFound(text.status())))
      Miss(name, std::string(text.status().message()));
    return text.ok() ? *std::move(text) : "";
  }

  static absl::StatusOr<std::string> TextOf(const fs::path& path, uint64_t most_bytes) {
    absl::StatusOr<std::string> text = ReadFile(path.string(), most_bytes);
    if (absl::IsNotFound(text.status())) return absl::NotFoundError("missing");
    return text;
  }

  // Likewise, but null.
  Json JsonOf(const char* name, bool expected) {
    const std::string text = Text(name, expected);
    if (text.empty()) return nullptr;
    Json json = ParseUntrusted(text);
    if (!json.is_discarded()) return json;
    Miss(name, "not valid JSON");
    return nullptr;
  }

  void Miss(const std::string& file, const std::string& why) {
    missing_.push_back({{"file", file}, {"why", why}});
  }
  const Json& missing() const { return missing_; }

 private:
  const fs::path folder_;
  const std::map<std::string, std::string>& files_;
  Json missing_ = Json::array();
};

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Json SentencesOf(const std::string& text) {
  Json list = Json::array();
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    list.push_back(std::string(line));
  return list;
}

// The order of arrivals of each asynchronous configuration's first launch, with its path.
Json ReadArrivals(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder / "records", error), end; !error && at != end;
       at.increment(error)) {
    if (at.depth() <= 2 && at->path().filename() == "arrivals-server0.bin") found.push_back(at->path());
  }
  std::ranges::sort(found);
  Json list = Json::array();
  std::set<std::string> names;
  for (const fs::path& path : found) {
    const fs::path launch = path.parent_path();
    const Json note = ParseUntrusted(Reader::TextOf(launch / "launch.json", kMaxTextBytes).value_or(""));
    const std::string strategy = TextAt(note, "strategy");
    const double workers = NumberAt(note, "workers", 0);
    if (strategy.empty() || !(workers >= 1 && workers < 1e6)) continue;
    const std::string name = absl::StrCat(strategy, " x ", workers);
    if (!names.insert(name).second) continue;
    Json digest = ParseUntrusted(DigestArrivals(name, Reader::TextOf(path, kMaxLongBytes).value_or("")));
    if (!digest.is_object()) continue;
    digest["records"] = launch.lexically_relative(folder).string();
    list.push_back(digest);
  }
  return list;
}

}  // namespace

std::vector<int> WorkersOf(const UntrustedJson& summary) {
  std::vector<int> workers;
  if (!summary.is_array()) return workers;
  for (const Json& row : summary) {
    const double count = NumberAt(FieldAt(row, "figures"), "workers", 0);
    if (count >= 1 && count < 1e6) workers.push_back(static_cast<int>(count));
  }
  return workers;
}

std::vector<std::string> AnswerOf(const UntrustedJson& run) {
  const bool chinese = CurrentLanguage() == Language::kChinese;
  std::vector<std::string> answer;
  if (run["table"].is_object()) {
    const Json& table = run["table"][chinese ? "zh" : "en"];
    const Json validity = table.value("validity", Json());
    answer = {TextAt(table, "verdict")};
    for (const Json& fact : table.value("facts", Json::array())) {
      answer.push_back(absl::StrCat(fact[0].get<std::string>(), ": ", fact[1].get<std::string>()));
    }
    answer.push_back(absl::StrCat(TextAt(validity, "title"), SentenceGap(), TextAt(validity, "why")));
  }
  const std::string predicted = TextAt(run, chinese ? "predicted_zh" : "predicted");
  const absl::string_view text = absl::StripAsciiWhitespace(predicted);
  const size_t blank = text.rfind("\n\n");
  answer.push_back(absl::StrReplaceAll(blank == absl::string_view::npos ? text : text.substr(blank + 2),
                                       {{"\n", SentenceGap()}}));
  std::erase_if(answer, [](const std::string& line) { return absl::StripAsciiWhitespace(line).empty(); });
  return answer;
}

bool IsTable(const UntrustedJson& json) {
  const auto is_row = [](const Json& row) {
    return row.is_array() && row.size() >= 2 && std::ranges::all_of(row, &Json::is_string);
  };
  return std::ranges::all_of(std::array{"en", "zh"}, [&](const char* language) {
    const Json table = json.is_object() ? json.value(language, Json()) : Json();
    const bool complete = table.is_object() &&
                          std::ranges::all_of(std::array{"columns", "rows", "legend"}, [&](const char* part) {
                            return table.contains(part) && table[part].is_array();
                          });
    // Tables of earlier versions have no validity.
    const Json validity = complete ? table.value("validity", Json()) : Json();
    const bool sound =
        validity.is_null() || std::ranges::all_of(std::array{"state", "title", "why"}, [&](const char* part) {
          return validity.is_object() && validity.value(part, Json()).is_string();
        });
    const Json facts = complete ? table.value("facts", Json::array()) : Json();
    const bool paired = facts.is_array() && std::ranges::all_of(facts, [&](const Json& fact) {
                          return is_row(fact) && fact.size() == 2;
                        });
    return complete && sound && paired && table.value("verdict", Json("")).is_string() &&
           table.value("settings", Json("")).is_string() && std::ranges::all_of(table["rows"], is_row) &&
           std::ranges::all_of(table["columns"], &Json::is_object);
  });
}

absl::StatusOr<RunData> ReadRunData(const std::string& text,
                                    const std::map<std::string, std::string>& files) {
  fs::path folder(text);
  if (!folder.has_filename()) folder = folder.parent_path();  // "runs/x/"
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    const fs::path near = fs::path("runs") / folder;  // report latest
    return absl::NotFoundError(fs::is_directory(near, error)
                                   ? Tr("$0 is not a folder; did you mean $1?", text, near.string())
                                   : Tr("$0 is not a folder", text));
  }
  if (files.empty() && !Exists(folder / "manifest.json") && !Exists(folder / "summary.json") &&
      !Exists(folder / "bench.csv")) {
    return absl::NotFoundError(
        Tr("$0 is not a run's folder: it contains no manifest.json, summary.json, bench.csv or "
           "result-rank0.json",
           text));
  }
  // "latest" is a link: show the target's name.
  const fs::path real = fs::canonical(folder, error);
  Reader reader(error ? folder : real, files);
  Json json = {{"folder", text},
               {"run_id", (error ? folder : real).filename().string()},
               {"one_launch", !files.empty()}};
  json["manifest"] = reader.JsonOf("manifest.json", files.empty() && !Exists(folder / "predict.txt"));
  const bool predicted = Exists(folder / "predict.txt");
  const bool bench = TextAt(json["manifest"], "verb") == "bench" || Exists(folder / "bench.csv");
  const bool ran = !bench && !predicted;  // true if processes trained
  json["summary"] = reader.JsonOf("summary.json", !bench);
  if (!json["summary"].is_array()) {
    if (!json["summary"].is_null())
      reader.Miss("summary.json", "has a layout that this version does not support");
    json["summary"] = nullptr;
  }
  const double version = NumberAt(json["manifest"], "schema_version", kSchemaVersion);
  if (version != kSchemaVersion) {
    reader.Miss("manifest.json", absl::StrCat("has layout ", version, ", but this version supports ",
                                              kSchemaVersion, ": figures may be missing"));
  }
  // The page says how many rounds there are.
  const bool has_rounds = NumberAt(FieldAt(json["manifest"], "cost"), "rounds_done", 0) > 0;
  if (!has_rounds && FieldAt(json["manifest"], "finished") == false) {
    reader.Miss("manifest.json", "the run did not finish");
  }
  json["table"] = reader.JsonOf("table.json", false);
  if (!IsTable(json["table"])) {
    json["table"] = nullptr;
    if (ran && json["summary"].is_array()) {
      reader.Miss("table.json",
                  "missing or from another version; repeat the run with this version (--config "
                  "RUN/config.toml) to create the table");
    }
  }
  json["runs_csv"] = ThinCsv(reader.Text("runs.csv", ran), kMaxCsvLines);
  json["curves_csv"] = ThinCsv(reader.Text("curves.csv", ran), kMaxCsvLines);
  json["bench_csv"] = ThinCsv(reader.Text("bench.csv", bench), kMaxCsvLines);
  json["csv_lines"] = kMaxCsvLines;
  json["predicted"] = reader.Text("predict.txt", false);
  json["predicted_zh"] = reader.Text("predict.zh.txt", false);
  json["findings"] = SentencesOf(reader.Text("findings.txt", ran));
  json["findings_zh"] = SentencesOf(reader.Text("findings.zh.txt", false));
  json["steps"] = ParseUntrusted(DigestSteps(reader.Text("steps.jsonl", ran, kMaxLongBytes)));
  const std::string trace = reader.Text("trace.json", ran, kMaxLongBytes);
  json["trace"] = ParseUntrusted(DigestTrace(trace));
  if (!trace.empty() && json["trace"]["launches"].empty()) reader.Miss("trace.json", "contains no steps");
  json["arrivals"] = ReadArrivals(folder);
  json["missing"] = reader.missing();
  return RunData{.name = text,
                 .json = DumpUntrusted(json),
                 .workers = WorkersOf(json["summary"]),
                 .answer = AnswerOf(json)};
}

}  // namespace psring
