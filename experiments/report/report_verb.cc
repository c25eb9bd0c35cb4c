#include "experiments/report/report_verb.h"

#include <filesystem>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/command_line.h"
#include "common/io/files.h"
#include "experiments/report/chart_data.h"
#include "experiments/report/chart_svg.h"
#include "experiments/report/kineto.h"
#include "experiments/report/page.h"
#include "experiments/report/run_data.h"
#include "experiments/texts/language_flag.h"

namespace psring {

CLI::App* AddReport(CLI::App& app, RawReportFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "report",
      "Make report.html again from the folders of runs; several are compared and pooled in one page");
  verb->add_option("run", raw.runs, "Folders of runs")->required()->expected(1, 1000);
  verb->add_option("--out", raw.out, "The page's file; else RUN/report.html, of several runs ./report.html")
      ->option_text("FILE");
  AddLanguageFlag(*verb, raw.language, "What the page opens with: en or zh; it has a switch");
  verb->add_option("--export", raw.export_to,
                   "Instead of the page: every chart as SVG and CSV in this folder, which is made where it "
                   "is missing, "
                   "and in kineto/ the trace of each launch as HolisticTraceAnalysis reads them")
      ->option_text("DIR")
      ->excludes("--out");
  return verb;
}

namespace {

// What HolisticTraceAnalysis reads; of several runs each has a folder.
absl::Status ExportTraces(const std::vector<std::string>& runs, const std::string& folder, Display& display) {
  for (const std::string& run : runs) {
    const absl::StatusOr<std::string> trace = ReadFile(run + "/trace.json");
    if (!trace.ok()) continue;
    std::string to = folder + "/kineto";
    if (runs.size() > 1) {
      absl::StrAppend(&to, "/", FileName(std::filesystem::weakly_canonical(run).filename().string()));
    }
    const auto files = KinetoTraces(*trace);
    for (const auto& [path, text] : files) {
      std::error_code error;
      std::filesystem::create_directories(std::filesystem::path(to + "/" + path).parent_path(), error);
      PSRING_RETURN_IF_ERROR(WriteFile(absl::StrCat(to, "/", path), text));
    }
    if (!files.empty()) display.Say(absl::StrCat(to, "/*/rank-*.json, for HolisticTraceAnalysis"));
  }
  return absl::OkStatus();
}

absl::Status Export(const std::vector<RunData>& runs, const std::string& folder, Display& display) {
  const std::vector<Chart> charts = ChartsOf(runs);
  if (charts.empty()) return absl::NotFoundError("these runs have no figures that a chart could show");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return absl::FailedPreconditionError(absl::StrCat("cannot make ", folder, ": ", error.message()));
  for (const Chart& chart : charts) {
    const std::string path = absl::StrCat(folder, "/", FileName(chart.id));
    PSRING_RETURN_IF_ERROR(WriteFile(path + ".svg", ChartSvg(chart)));
    PSRING_RETURN_IF_ERROR(WriteFile(path + ".csv", ChartCsv(chart)));
    display.Say(absl::StrCat(path, ".svg, .csv"));
  }
  return absl::OkStatus();
}

}  // namespace

int RunReport(const RawReportFlags& raw, Display& display) {
  std::vector<RunData> runs;
  for (const std::string& folder : raw.runs) {
    const absl::StatusOr<RunData> data = ReadRunData(folder);
    if (data.ok()) {
      runs.push_back(*data);
    } else {
      Fail("psring report", std::string(data.status().message()));
    }
  }
  if (runs.empty()) return 2;
  if (!raw.export_to.empty()) {
    absl::Status exported = Export(runs, raw.export_to, display);
    if (exported.ok()) exported = ExportTraces(raw.runs, raw.export_to, display);
    if (!exported.ok()) return Fail("psring report", std::string(exported.message()), 2);
    return runs.size() == raw.runs.size() ? 0 : 2;
  }
  const std::string path = !raw.out.empty()       ? raw.out
                           : raw.runs.size() == 1 ? absl::StrCat(raw.runs.front(), "/report.html")
                                                  : "report.html";
  const absl::Status written = WriteFile(path, ReportPage(runs, LanguageOf(raw.language)));
  if (!written.ok()) return Fail("psring report", std::string(written.message()), 2);
  display.Say(path);
  return runs.size() == raw.runs.size() ? 0 : 2;
}

absl::Status WriteRunReport(const std::string& folder, Language language) {
  PSRING_ASSIGN_OR_RETURN(RunData data, ReadRunData(folder));
  return WriteFile(absl::StrCat(folder, "/report.html"), ReportPage({data}, language));
}

}  // namespace psring
