// Reads back the runs that ReportPage embedded.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/files.h"
#include "experiments/page/digests.h"
#include "experiments/page/run_data.h"

namespace psring {
namespace {

using Json = UntrustedJson;

// Of page.html. The data contains no <, see ForScriptElement.
constexpr std::string_view kDataBegins = "<script type=\"application/json\" id=\"data\">";
constexpr std::string_view kDataEnds = "</script>";

// `part` if it is an object with the list `list`, else `otherwise`.
Json WithList(const Json& part, const char* list, const std::string& otherwise) {
  const bool is_sound = part.is_object() && part.contains(list) && part[list].is_array() &&
                        std::ranges::all_of(part[list], &Json::is_object);
  return is_sound ? part : ParseUntrusted(otherwise);
}

// The parts of an embedded run that have the structure of ReadRunData's.
Json Sound(const std::string& page, const Json& run) {
  const auto at = [&](const char* key) { return FieldAt(run, key); };
  Json sound = {{"source", TextAt(run, "source").empty() ? page : TextAt(run, "source")}};
  for (const char* text : {"folder", "run_id"}) sound[text] = TextAt(run, text);
  sound["manifest"] = at("manifest").is_object() ? at("manifest") : Json();
  sound["summary"] = at("summary").is_array() ? at("summary") : Json();
  sound["table"] = IsTable(at("table")) ? at("table") : Json();
  for (const char* text : {"runs_csv", "curves_csv", "bench_csv"}) sound[text] = TextAt(run, text);
  sound["one_launch"] = at("one_launch") == Json(true);
  sound["csv_lines"] = NumberAt(run, "csv_lines", 0);
  for (const char* text : {"predicted", "predicted_zh"}) sound[text] = TextAt(run, text);
  for (const char* texts : {"findings", "findings_zh"}) {
    sound[texts] = ListAt(run, texts);
    std::erase_if(sound[texts].get_ref<Json::array_t&>(), [](const Json& text) { return !text.is_string(); });
  }
  sound["steps"] = WithList(at("steps"), "loss", DigestSteps(""));
  sound["trace"] = WithList(at("trace"), "launches", DigestTrace(""));
  sound["arrivals"] = Json::array();
  for (const char* list : {"arrivals", "missing"}) {
    sound[list] = WithList({{list, at(list)}}, list, absl::StrCat("{\"", list, "\":[]}"))[list];
  }
  return sound;
}

}  // namespace

absl::StatusOr<std::vector<RunData>> RunsOfPage(const std::string& name, const std::string& html) {
  const auto no_page = [&](const char* why) {
    return InvalidArgument(name, " is not a page of psring report: ", why);
  };
  const size_t begin = html.find(kDataBegins);
  if (begin == std::string::npos) return no_page("it contains no run's data");
  const size_t from = begin + kDataBegins.size(), end = html.find(kDataEnds, from);
  if (end == std::string::npos) return no_page("it is truncated");
  const Json data = ParseUntrusted(html.substr(from, end - from));
  if (!FieldAt(data, "runs").is_array()) return no_page("its data is malformed");
  std::vector<RunData> runs;
  for (const Json& run : data["runs"]) {
    if (!run.is_object()) return no_page("its data is malformed");
    const Json sound = Sound(name, run);
    const std::string source = TextAt(sound, "source");
    runs.push_back({.name = std::string(absl::StripSuffix(source, ".html")),
                    .json = DumpUntrusted(sound),
                    .workers = WorkersOf(sound["summary"]),
                    .answer = AnswerOf(sound)});
  }
  if (runs.empty()) return no_page("it contains no run's data");
  return runs;
}

absl::StatusOr<std::vector<RunData>> ReadRunsOfPage(const std::string& path) {
  PSRING_ASSIGN_OR_RETURN(const std::string html, ReadFile(path, kMaxPageBytes));
  return RunsOfPage(path, html);
}

}  // namespace psring
