#include "experiments/report/run_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/records.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// JSON that somebody else may have written: nothing here throws, whatever the text holds.
using Json = nlohmann::ordered_json;

// Discarded (is_discarded()) where `text` is no JSON; what is nested deeper than anything of ours is left
// out.
Json ParseUntrusted(const std::string& text) {
  constexpr int kDeepest = 32;
  return Json::parse(
      text, [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; }, false);
}

// Broken UTF-8 is replaced.
std::string DumpUntrusted(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double NumberAt(const Json& json, const char* key, double otherwise) {
  if (!json.is_object()) return otherwise;
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::string TextAt(const Json& json, const char* key) {
  if (!json.is_object()) return "";
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

constexpr size_t kMostPoints = 150;  // of a curve

// Of one launch, rank 0's steps.
struct Launch {
  std::string strategy, part;
  int64_t workers, repeat;
  auto operator<=>(const Launch&) const = default;
};

struct LossPoint {
  double samples, begin_ns, loss;
};

// Means of neighbouring steps, so that at most kMostPoints are left.
Json Averaged(const std::vector<LossPoint>& points) {
  const size_t group = (points.size() + kMostPoints - 1) / kMostPoints;
  Json list = Json::array();
  for (size_t begin = 0; begin < points.size(); begin += group) {
    const size_t end = std::min(begin + group, points.size());
    LossPoint sum{0, 0, 0};
    for (size_t i = begin; i < end; ++i) {
      sum.samples += points[i].samples;
      sum.begin_ns += points[i].begin_ns - points.front().begin_ns;
      sum.loss += points[i].loss;
    }
    const double count = static_cast<double>(end - begin);
    list.push_back({sum.samples / count, sum.begin_ns / count * 1e-9, sum.loss / count});
  }
  return list;
}

constexpr double kLaunches = 1000000;  // the row that names the launches; see TraceJson
constexpr size_t kMostSpans = 1500;    // of a launch

struct Span {
  double rank, step, bucket, begin_us, us;
  std::string lane;
  double end_us() const { return begin_us + us; }
};

struct Window {
  double begin_us = 0, end_us = 0;
};

// Rank 0's step of median length, of those that the trace holds.
Window MedianStep(const std::vector<Span>& spans) {
  std::map<double, Window> steps;
  for (const Span& span : spans) {
    if (span.rank != 0 || span.step < 0) continue;
    const auto [found, fresh] = steps.try_emplace(span.step, Window{span.begin_us, span.end_us()});
    found->second.begin_us = std::min(found->second.begin_us, span.begin_us);
    found->second.end_us = std::max(found->second.end_us, span.end_us());
  }
  std::vector<Window> windows;
  for (const auto& [step, window] : steps) windows.push_back(window);
  if (windows.empty()) return {};
  std::ranges::sort(windows, {}, [](const Window& window) { return window.end_us - window.begin_us; });
  return windows[(windows.size() - 1) / 2];
}

double Rounded(double ms) { return std::round(ms * 1e4) / 1e4; }

constexpr uint64_t kLargestFile = uint64_t{1} << 30;
constexpr size_t kMostCsvLines = 2000;
constexpr double kSchemaVersion = 1;

// The files of one folder, and what became of them.
class Reader {
 public:
  explicit Reader(std::string folder) : folder_(std::move(folder)) {}

  // Empty where there is none or it cannot be read; says so if the page has to.
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

  // Null likewise.
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

// Those of the rows, as far as they are numbers of workers.
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

Json Sentences(const std::string& text) {
  Json list = Json::array();
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    list.push_back(std::string(line));
  return list;
}

}  // namespace

std::string DigestSteps(const std::string& text) {
  std::map<std::pair<std::string, int64_t>, std::map<int64_t, int64_t>> staleness;
  std::map<Launch, std::vector<LossPoint>> losses;
  int64_t lines = 0, skipped = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    ++lines;
    const Json step = ParseUntrusted(std::string(line));
    const double workers = NumberAt(step, "workers", 0), rank = NumberAt(step, "rank", -1);
    if (step.is_discarded() || !step.is_object() || !(workers >= 1) || !(workers < 1e6) || !(rank >= 0)) {
      ++skipped;
      continue;
    }
    const std::string strategy = TextAt(step, "strategy");
    const Launch launch{strategy, TextAt(step, "part"), static_cast<int64_t>(workers),
                        static_cast<int64_t>(NumberAt(step, "repeat", 0))};
    const double loss = NumberAt(step, "loss", NAN);
    if (rank == 0 && std::isfinite(loss)) {
      auto& points = losses[launch];
      const double before = points.empty() ? 0 : points.back().samples;
      points.push_back(
          {before + NumberAt(step, "samples", 0) * workers, NumberAt(step, "begin_ns", 0), loss});
    }
    const auto buckets = step.find("buckets");
    if (buckets == step.end() || !buckets->is_array()) continue;
    for (const Json& bucket : *buckets) {
      const double stale = NumberAt(bucket, "staleness", -1);
      if (stale >= 0 && stale < 1e9) ++staleness[{strategy, launch.workers}][static_cast<int64_t>(stale)];
    }
  }
  Json json = {{"lines", lines},
               {"skipped", skipped},
               {"most_points", kMostPoints},
               {"staleness", Json::array()},
               {"loss", Json::array()}};
  for (const auto& [key, counts] : staleness) {
    Json histogram = Json::object();
    for (const auto& [stale, count] : counts) histogram[absl::StrCat(stale)] = count;
    json["staleness"].push_back({{"strategy", key.first}, {"workers", key.second}, {"counts", histogram}});
  }
  // Rounds of the cost part only repeat their first steps, so one of them stands for all.
  for (const auto& [launch, points] : losses) {
    if (launch.part == "cost" && launch.repeat > 0) continue;
    json["loss"].push_back({{"strategy", launch.strategy},
                            {"workers", launch.workers},
                            {"part", launch.part},
                            {"repeat", launch.repeat},
                            {"points", Averaged(points)}});
  }
  return DumpUntrusted(json);
}

std::string DigestTrace(const std::string& text) {
  const Json trace = ParseUntrusted(text);
  std::vector<Span> spans, launches;
  if (trace.is_object() && trace.contains("traceEvents") && trace["traceEvents"].is_array()) {
    for (const Json& event : trace["traceEvents"]) {
      if (TextAt(event, "ph") != "X") continue;
      const auto arguments = event.find("args");
      const Json none;
      const Json& args = arguments != event.end() ? *arguments : none;
      const Span span{NumberAt(event, "pid", -1), NumberAt(args, "step", -1), NumberAt(args, "bucket", -1),
                      NumberAt(event, "ts", 0),   NumberAt(event, "dur", 0),  TextAt(event, "name")};
      (span.rank == kLaunches ? launches : spans).push_back(span);
    }
  }
  Json json = {{"most_spans", kMostSpans}, {"launches", Json::array()}};
  for (const Span& launch : launches) {
    std::vector<Span> inside;
    for (const Span& span : spans) {
      if (span.begin_us >= launch.begin_us - 1 && span.end_us() <= launch.end_us() + 1)
        inside.push_back(span);
    }
    const Window window = MedianStep(inside);
    std::erase_if(inside, [&](const Span& span) {
      return span.rank < 0 || span.end_us() <= window.begin_us || span.begin_us >= window.end_us;
    });
    if (inside.empty()) continue;
    if (inside.size() > kMostSpans) {
      std::ranges::stable_sort(inside, std::ranges::greater(), &Span::us);
      inside.resize(kMostSpans);
    }
    Json list = Json::array();
    for (const Span& span : inside) {
      list.push_back({span.rank, span.lane, span.bucket, Rounded((span.begin_us - window.begin_us) * 1e-3),
                      Rounded(span.us * 1e-3)});
    }
    json["launches"].push_back(
        {{"name", launch.lane}, {"ms", Rounded((window.end_us - window.begin_us) * 1e-3)}, {"spans", list}});
  }
  return DumpUntrusted(json);
}

std::string ThinCsv(const std::string& text, size_t lines) {
  const std::vector<absl::string_view> all = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (all.size() <= lines || lines < 3) return text;
  std::vector<absl::string_view> kept = {all.front()};
  const size_t body = all.size() - 1, keep = lines - 1;
  for (size_t i = 0; i < keep; ++i) kept.push_back(all[1 + i * (body - 1) / (keep - 1)]);
  return absl::StrCat(absl::StrJoin(kept, "\n"), "\n");
}

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
  // "latest" is a link; its name says nothing.
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
  json["runs_csv"] = ThinCsv(reader.Text("runs.csv", ran), kMostCsvLines);
  json["curves_csv"] = ThinCsv(reader.Text("curves.csv", ran), kMostCsvLines);
  json["bench_csv"] = ThinCsv(reader.Text("bench.csv", bench), kMostCsvLines);
  json["csv_lines"] = kMostCsvLines;
  json["predicted"] = reader.Text("predict.txt", false);
  json["findings"] = Sentences(reader.Text("findings.txt", ran));
  const std::string steps = reader.Text("steps.jsonl", ran), trace = reader.Text("trace.json", ran);
  json["steps"] = ParseUntrusted(DigestSteps(steps));
  json["trace"] = ParseUntrusted(DigestTrace(trace));
  if (!trace.empty() && json["trace"]["launches"].empty()) reader.Miss("trace.json", "holds no step");
  json["missing"] = reader.missing();
  return RunData{.json = DumpUntrusted(json), .workers = WorkersOf(json["summary"])};
}

}  // namespace psring
