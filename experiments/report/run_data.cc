#include "experiments/report/run_data.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/io/files.h"
#include "experiments/report/digests.h"
#include "experiments/runs/untrusted_json.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

using Json = UntrustedJson;

constexpr uint64_t kLargestFile = uint64_t{1} << 30;
constexpr size_t kMostCsvLines = 2000;
constexpr double kSchemaVersion = 1;

// Reads the files of one folder and lists those that are missing.
class Reader {
 public:
  explicit Reader(std::string folder) : folder_(std::move(folder)) {}

  // Empty if it cannot be read; listed if `expected`.
  std::string Text(const char* name, bool expected) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::error_code error;
    const uint64_t size = fs::file_size(path, error);
    if (error) {
      if (expected) Miss(name, "not there");
      return "";
    }
    if (size > kLargestFile) return Miss(name, "too large to be read"), "";
    const absl::StatusOr<std::string> text = ReadFile(path);
    if (!text.ok()) return Miss(name, std::string(text.status().message())), "";
    return *text;
  }

  // Empty if it cannot be read.
  static std::string TextOf(const fs::path& path) {
    std::error_code error;
    const uint64_t size = fs::file_size(path, error);
    if (error || size > kLargestFile) return "";
    return ReadFile(path.string()).value_or("");
  }

  // Likewise null.
  Json JsonOf(const char* name, bool expected) {
    const std::string text = Text(name, expected);
    if (text.empty()) return nullptr;
    Json json = ParseUntrusted(text);
    if (!json.is_discarded()) return json;
    Miss(name, "broken: no JSON");
    return nullptr;
  }

  void Miss(const std::string& file, const std::string& why) {
    missing_.push_back({{"file", file}, {"why", why}});
  }
  const Json& missing() const { return missing_; }

 private:
  const std::string folder_;
  Json missing_ = Json::array();
};

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// The valid numbers of workers in the rows.
std::vector<int> WorkersOf(const Json& summary) {
  std::vector<int> workers;
  if (!summary.is_array()) return workers;
  for (const Json& row : summary) {
    if (!row.is_object() || !row.contains("figures")) continue;
    const double count = NumberAt(row["figures"], "workers", 0);
    if (count >= 1 && count < 1e6) workers.push_back(static_cast<int>(count));
  }
  return workers;
}

// Whether the page can show it; see TableJson.
bool IsTable(const Json& json) {
  for (const char* language : {"en", "zh"}) {
    const auto of = [&](const Json& object, const char* key) {
      const auto found = object.find(key);
      return found != object.end() ? *found : Json();
    };
    if (!json.is_object() || !of(json, language).is_object()) return false;
    const Json table = of(json, language);
    for (const char* part : {"columns", "rows", "legend"}) {
      if (!of(table, part).is_array()) return false;
    }
    for (const Json& row : table["rows"]) {
      if (!row.is_array() || row.size() < 2) return false;
      for (const Json& cell : row) {
        if (!cell.is_string()) return false;
      }
    }
    for (const Json& column : table["columns"]) {
      if (!column.is_object()) return false;
    }
  }
  return true;
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
    const Json note = ParseUntrusted(Reader::TextOf(launch / "launch.json"));
    const std::string strategy = TextAt(note, "strategy");
    const double workers = NumberAt(note, "workers", 0);
    if (strategy.empty() || !(workers >= 1 && workers < 1e6)) continue;
    const std::string name = absl::StrCat(strategy, " x ", workers);
    if (!names.insert(name).second) continue;
    Json digest = ParseUntrusted(DigestArrivals(name, Reader::TextOf(path)));
    if (!digest.is_object()) continue;
    digest["records"] = launch.lexically_relative(folder).string();
    list.push_back(digest);
  }
  return list;
}

}  // namespace

absl::StatusOr<RunData> ReadRunData(const std::string& text) {
  fs::path folder(text);
  if (!folder.has_filename()) folder = folder.parent_path();  // "runs/x/"
  std::error_code error;
  if (!fs::is_directory(folder, error)) return absl::NotFoundError(absl::StrCat(text, " is no folder"));
  if (!Exists(folder / "manifest.json") && !Exists(folder / "summary.json") &&
      !Exists(folder / "bench.csv")) {
    return absl::NotFoundError(absl::StrCat(
        text, " is not a run's folder: it holds neither manifest.json nor summary.json nor bench.csv"));
  }
  // "latest" is a link: show the target's name.
  const fs::path real = fs::canonical(folder, error);
  Reader reader((error ? folder : real).string());
  Json json = {{"folder", text}, {"run_id", (error ? folder : real).filename().string()}};
  json["manifest"] = reader.JsonOf("manifest.json", !Exists(folder / "predict.txt"));
  const bool predicted = Exists(folder / "predict.txt");
  const bool bench = TextAt(json["manifest"], "verb") == "bench" || Exists(folder / "bench.csv");
  const bool ran = !bench && !predicted;  // processes that trained
  json["summary"] = reader.JsonOf("summary.json", !bench);
  if (!json["summary"].is_array()) {
    if (!json["summary"].is_null()) reader.Miss("summary.json", "another layout than this version's");
    json["summary"] = nullptr;
  }
  const double version = NumberAt(json["manifest"], "schema_version", kSchemaVersion);
  if (version != kSchemaVersion) {
    reader.Miss("manifest.json", absl::StrCat("layout ", version, ", and this version knows ", kSchemaVersion,
                                              ": figures may be missing"));
  }
  if (json["manifest"].is_object() && json["manifest"].contains("finished") &&
      json["manifest"]["finished"] == false) {
    reader.Miss("manifest.json", "says that the run did not end");
  }
  json["table"] = reader.JsonOf("table.json", false);
  if (!IsTable(json["table"])) {
    json["table"] = nullptr;
    if (ran && json["summary"].is_array()) {
      reader.Miss(
          "table.json",
          "missing or from another version; run `psring rerun` with this version to create the table");
    }
  }
  json["runs_csv"] = ThinCsv(reader.Text("runs.csv", ran), kMostCsvLines);
  json["curves_csv"] = ThinCsv(reader.Text("curves.csv", ran), kMostCsvLines);
  json["bench_csv"] = ThinCsv(reader.Text("bench.csv", bench), kMostCsvLines);
  json["csv_lines"] = kMostCsvLines;
  json["predicted"] = reader.Text("predict.txt", false);
  json["predicted_zh"] = reader.Text("predict.zh.txt", false);
  json["findings"] = SentencesOf(reader.Text("findings.txt", ran));
  json["findings_zh"] = SentencesOf(reader.Text("findings.zh.txt", false));
  const std::string steps = reader.Text("steps.jsonl", ran), trace = reader.Text("trace.json", ran);
  json["steps"] = ParseUntrusted(DigestSteps(steps));
  json["trace"] = ParseUntrusted(DigestTrace(trace));
  if (!trace.empty() && json["trace"]["launches"].empty()) reader.Miss("trace.json", "holds no step");
  json["arrivals"] = ReadArrivals(folder);
  json["missing"] = reader.missing();
  return RunData{.json = DumpUntrusted(json), .workers = WorkersOf(json["summary"])};
}

}  // namespace psring
