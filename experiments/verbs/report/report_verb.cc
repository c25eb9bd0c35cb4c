#include "experiments/verbs/report/report_verb.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/io/files.h"
#include "common/text/translate.h"
#include "experiments/page/page.h"
#include "experiments/page/run_data.h"
#include "experiments/pool/pool.h"
#include "experiments/run_folder/recorded_run.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// Writes DIR/<launch>/rank-<n>.json, or DIR/<run>/<launch>/rank-<n>.json if there are several runs.
absl::Status WriteKinetoTraces(const std::vector<std::string>& runs, const std::string& folder,
                               Display& display) {
  for (const std::string& run : runs) {
    PSRING_ASSIGN_OR_RETURN(const std::string trace, ReadFile(run + "/trace.json", kMaxLongBytes));
    const fs::path to = runs.size() > 1
                            ? fs::path(folder) / FileName(fs::weakly_canonical(run).filename().string())
                            : fs::path(folder);
    const auto files = KinetoTraces(trace);
    if (files.empty()) return absl::NotFoundError(Tr("$0/trace.json contains no steps", run));
    for (const auto& [path, text] : files) {
      std::error_code error;
      fs::create_directories((to / path).parent_path(), error);
      PSRING_RETURN_IF_ERROR(WriteFile((to / path).string(), text));
    }
    display.Say(absl::StrCat(to.string(), "/*/rank-*.json, for HolisticTraceAnalysis"));
  }
  return absl::OkStatus();
}

absl::Status Cite(const std::vector<std::string>& runs, Display& display) {
  for (const std::string& run : runs) {
    PSRING_ASSIGN_OR_RETURN(const std::string text, CiteRun(run));
    display.SayLines(text);
  }
  return absl::OkStatus();
}

absl::Status Pack(const RawReportFlags& raw, Display& display) {
  if (raw.runs.size() != 1) return InvalidTr("--pack takes one run; pack each one separately");
  std::error_code error;
  const fs::path run = fs::canonical(raw.runs.front(), error);
  const std::string archive = raw.out.empty() ? FileName(run.filename().string()) + ".tar" : raw.out;
  PSRING_RETURN_IF_ERROR(PackRun(raw.runs.front(), archive));
  display.Say(absl::StrCat(archive, "; to verify: tar -xf ", archive, " && cd ", run.filename().string(),
                           " && sha256sum -c SHA256SUMS"));
  return absl::OkStatus();
}

// Prints the grades as TAP, and writes them as JSON.
absl::Status GradeClass(const std::string& folder, const std::string& path, const std::vector<RunData>& runs,
                        Display& display) {
  std::vector<std::string> data;
  for (const RunData& run : runs) data.push_back(run.json);
  PSRING_ASSIGN_OR_RETURN(const std::vector<AnswersFile> files, ReadAnswers(folder));
  const std::vector<Grade> grades = GradeAnswers(data, files);
  PSRING_RETURN_IF_ERROR(WriteFile(path, GradesJson(grades)));
  display.SayLines(std::string(absl::StripSuffix(GradesTap(grades), "\n")));
  return absl::OkStatus();
}

bool IsPage(const std::string& input) {
  std::error_code error;
  return !fs::is_directory(input, error) && (fs::exists(input, error) || input.ends_with(".html"));
}

// --kineto, --cite and --pack read files that a page does not contain.
absl::Status RequireFolders(const RawReportFlags& raw) {
  const char* const flag = !raw.kineto.empty() ? "--kineto" : raw.cite ? "--cite" : raw.pack ? "--pack" : "";
  for (const std::string& run : raw.runs) {
    if (*flag == '\0' || !IsPage(run)) continue;
    return InvalidTr("$0 needs a run folder, but $1 is a file; give the folder of the run", flag, run);
  }
  return absl::OkStatus();
}

absl::StatusOr<RunData> ReadFolder(const std::string& folder) {
  if (!HasLaunchRecords(folder)) return ReadRunData(folder);
  PSRING_ASSIGN_OR_RETURN(const auto files, LaunchFiles(folder));
  return ReadRunData(folder, files);
}

// The runs of a folder (one) or of a page.
absl::StatusOr<std::vector<RunData>> RunsOf(const std::string& input) {
  if (IsPage(input)) return ReadRunsOfPage(input);
  PSRING_ASSIGN_OR_RETURN(RunData run, ReadFolder(input));
  return std::vector<RunData>{std::move(run)};
}

// Where the page of all runs, or the grades, are written. InvalidArgument: there is one of the pages that
// were read.
absl::StatusOr<std::string> OutputOf(const RawReportFlags& raw) {
  const bool of_one = raw.runs.size() == 1 && !IsPage(raw.runs.front());
  const std::string path = !raw.out.empty()     ? raw.out
                           : !raw.grade.empty() ? "grades.json"
                           : of_one             ? absl::StrCat(raw.runs.front(), "/report.html")
                                                : "report.html";
  for (const std::string& input : raw.runs) {
    std::error_code error;
    if (fs::equivalent(input, path, error)) {
      return InvalidTr("the result would overwrite $0; name another file with --out", input);
    }
  }
  return path;
}

// Several runs of one plan are pooled, others are compared side by side; the result is printed.
Pool PoolOf(const std::vector<RunData>& runs, Display& display) {
  std::vector<PoolInput> inputs;
  for (const RunData& run : runs) inputs.push_back({run.name, run.json});
  Pool pool = PoolRuns(inputs);
  if (!pool.beside.runs.empty()) {
    display.SayLines(BesideTable(pool.beside));
    return pool;
  }
  for (const LeftOut& run : pool.left_out) {
    Fail("psring report", Tr("not pooled: $0: $1", run.name,
                             CurrentLanguage() == Language::kChinese ? run.chinese : run.english));
  }
  if (pool.machines.size() > 1) display.SayLines(PoolTable(pool));
  return pool;
}

}  // namespace

CLI::App* AddReport(CLI::App& app, RawReportFlags& raw) {
  CLI::App* verb =
      app.add_subcommand("report",
                         "Create report.html from run folders or from the pages of runs. Several runs share "
                         "one page. Those of one plan are pooled: what each machine measured, and the spread "
                         "over machines. Runs of different plans are shown side by side");
  verb->add_option(
          "run", raw.runs,
          "Run folders, folders that trainer --record wrote, or pages (report.html) of runs [the latest run]")
      ->expected(0, 1000);
  verb->add_option("--out", raw.out,
                   "Output file; default RUN/report.html, or ./report.html for several runs")
      ->option_text("FILE");
  AddLanguageFlag(*verb, "Language in which the page opens: en or zh; the page has a switch");
  verb->add_option("--kineto", raw.kineto,
                   "Instead of the page, write the trace of each launch to this folder in the format of "
                   "PyTorch's profiler, for HolisticTraceAnalysis")
      ->option_text("DIR")
      ->excludes("--out");
  verb->add_flag(
          "--cite", raw.cite,
          "Instead of the page, print BibTeX, a paragraph on methods, and the table as Markdown and LaTeX")
      ->excludes("--out")
      ->excludes("--kineto");
  verb->add_flag("--pack", raw.pack,
                 "Instead of the page, write the run's files and their SHA-256 hashes to one archive: --out, "
                 "or NAME.tar in this folder")
      ->excludes("--cite")
      ->excludes("--kineto");
  verb->add_option("--grade", raw.grade,
                   "Instead of the page, grade this folder's files of the pages' \"Download my answers\": "
                   "prints TAP, and writes JSON to --out, or grades.json. The first two tries count")
      ->option_text("DIR")
      ->excludes("--kineto")
      ->excludes("--cite")
      ->excludes("--pack");
  return verb;
}

int RunReport(const RawReportFlags& asked, Display& display) {
  const auto outcome = [](const absl::Status& status) {
    return status.ok() ? 0 : Fail("psring report", std::string(status.message()), 2);
  };
  RawReportFlags raw = asked;
  if (raw.runs.empty()) {
    const absl::StatusOr<std::string> latest = LatestRun();
    if (!latest.ok()) return outcome(latest.status());
    raw.runs = {*latest};
  }
  const absl::Status folders = RequireFolders(raw);
  if (!folders.ok()) return outcome(folders);
  if (!raw.kineto.empty()) return outcome(WriteKinetoTraces(raw.runs, raw.kineto, display));
  if (raw.cite || raw.pack) return outcome(raw.cite ? Cite(raw.runs, display) : Pack(raw, display));
  const absl::StatusOr<std::string> path = OutputOf(raw);
  if (!path.ok()) return outcome(path.status());
  std::vector<RunData> runs;
  bool all_read = true;
  for (const std::string& input : raw.runs) {
    absl::StatusOr<std::vector<RunData>> data = RunsOf(input);
    if (data.ok()) {
      std::ranges::move(*data, std::back_inserter(runs));
    } else {
      all_read = false;
      outcome(data.status());
    }
  }
  if (runs.empty()) return 2;
  if (!raw.grade.empty()) {
    const int graded = outcome(GradeClass(raw.grade, *path, runs, display));
    return all_read ? graded : 2;
  }
  const Pool pool = runs.size() > 1 ? PoolOf(runs, display) : Pool();
  const absl::Status written = WriteFile(*path, ReportPage(runs, pool));
  if (!written.ok()) return outcome(written);
  display.Say(*path);
  return all_read ? 0 : 2;
}

}  // namespace psring
