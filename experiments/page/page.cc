#include "experiments/page/page.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/files.h"
#include "common/text/translate.h"
#include "experiments/page/digests.h"
#include "experiments/page/exercises.h"
#include "experiments/page/schedule_data.h"
#include "experiments/page/web/assets.h"

namespace psring {
namespace {

// Worker counts that the stepper offers: common ones and those of the runs.
std::vector<int> StepperRanks(const std::vector<RunData>& runs) {
  std::vector<int> ranks = {2, 3, 4, 8};
  for (const RunData& run : runs) ranks.insert(ranks.end(), run.workers.begin(), run.workers.end());
  return ranks;
}

std::string ForHtml(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// What a reader without JavaScript sees: the answer of each run as text.
std::string WithoutScript(const std::vector<RunData>& runs) {
  std::string html = CurrentLanguage() == Language::kChinese ? "<div lang=\"zh-CN\">" : "<div>";
  const auto add = [&](const std::string& text) { absl::StrAppend(&html, "<p>", ForHtml(text), "</p>"); };
  for (const RunData& run : runs) {
    for (const std::string& text : run.answer) {
      add(runs.size() > 1 ? absl::StrCat(run.name, ": ", text) : text);
    }
  }
  add(Tr("This page draws its figures with JavaScript; the same figures are in summary.csv in its folder."));
  return html + "</div>";
}

}  // namespace

std::string ForScriptElement(const std::string& json) {
  return absl::StrReplaceAll(json, {{"<", "\\u003c"},
                                    {">", "\\u003e"},
                                    {"&", "\\u0026"},
                                    {"\xe2\x80\xa8", "\\u2028"},
                                    {"\xe2\x80\xa9", "\\u2029"}});
}

std::string ReportPage(const std::vector<RunData>& runs, const Pool& pool) {
  const std::string data = absl::StrCat(
      "{\"language\":", CurrentLanguage() == Language::kChinese ? "\"zh\"" : "\"en\"",
      ",\"texts\":", nlohmann::json(ChineseByContext("page.")).dump(), ",\"runs\":[",
      absl::StrJoin(runs, ",", [](std::string* out, const RunData& run) { out->append(run.json); }),
      "],\"exercises\":[",
      absl::StrJoin(runs, ",",
                    [](std::string* out, const RunData& run) { out->append(ExercisesJson(run.json)); }),
      "],\"strategies\":", ChartOrderJson(), ",\"schedules\":", SchedulesJson(StepperRanks(runs)),
      ",\"programs\":", ProgramsJson(), ",\"theory\":", TheoryJson(), ",\"waiting\":", StalenessJson(),
      ",\"glossary\":", GlossaryJson(), ",\"pool\":", pool.machines.size() > 1 ? PoolJson(pool) : "null",
      ",\"beside\":", BesideJson(pool.beside), "}");
  // StrReplaceAll makes one pass: placeholders in inserted text are not expanded.
  return absl::StrReplaceAll(kPageHtml, {{"{{css}}", kPageCss},
                                         {"{{noscript}}", WithoutScript(runs)},
                                         {"{{data}}", ForScriptElement(data)},
                                         {"{{d3_notice}}", kD3Notice},
                                         {"{{d3}}", kD3},
                                         {"{{script}}", kPageScript}});
}

absl::Status WriteRunReport(const std::string& folder) {
  PSRING_ASSIGN_OR_RETURN(const RunData data, ReadRunData(folder));
  return WriteFile(absl::StrCat(folder, "/report.html"), ReportPage({data}));
}

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
