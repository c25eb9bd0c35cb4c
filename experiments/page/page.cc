#include "experiments/page/page.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/text/translate.h"
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

}  // namespace psring
