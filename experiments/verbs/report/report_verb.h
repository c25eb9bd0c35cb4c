// psring report: writes the page of one or more existing runs, from their folders or their pages.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/launch/progress.h"

namespace CLI {
class App;
}

namespace psring {

struct RawReportFlags {
  std::vector<std::string> runs;
  std::string out, kineto, grade;
  bool cite = false, pack = false;
};

CLI::App* AddReport(CLI::App& app, RawReportFlags& raw);

// Returns the exit code. Inputs that are not runs are reported on stderr and skipped; runs that cannot be
// pooled are reported and shown without being pooled.
int RunReport(const RawReportFlags& raw, Display& display);

// The text with which a run can be cited: BibTeX, a paragraph on methods, and the table as Markdown and
// LaTeX, in English. From manifest.json and summary.json of a comparison or a training, of any
// schema_version. Pure. InvalidArgument: one of them is not what psring writes. Figures that the files lack
// are left out.
absl::StatusOr<std::string> CitationOf(const std::string& manifest, const std::string& summary);

// Of a run folder. NotFound: a file is missing.
absl::StatusOr<std::string> CiteRun(const std::string& folder);

// Writes a tar archive, to publish beside a paper, with all regular files of `folder`, below the folder's
// name, and SHA256SUMS, which `sha256sum -c` verifies. Links, checkpoints and `archive` itself are left out;
// owners and times are too, so equal folders give equal archives. Must not be called while there is an
// Interrupt. InvalidArgument: not a run folder.
absl::Status PackRun(const std::string& folder, const std::string& archive);

// --grade: the answers of a class to the exercises of a run's page. A file of "Download my answers"
// (answersText in questions.js), which is untrusted.
struct AnswersFile {
  std::string name, text;
};

struct GradedExercise {
  std::string number;    // "1.1"
  std::string state;     // of the best of the first two tries: right, near or wrong; none: no answer
  std::string tries;     // these, as typed: "3, 4"
  std::string expected;  // the right answer
};

struct Grade {
  std::string name, run_id;
  bool known = false;  // whether these are answers for one of the runs; false: `exercises` is empty
  std::vector<GradedExercise> exercises;
};

// One for each file. `runs`: as in run_data.h; a file is judged by the run with its run_id and start.
std::vector<Grade> GradeAnswers(const std::vector<std::string>& runs, const std::vector<AnswersFile>& files);

// [{name, run_id, right (a number), exercises: [{exercise, state, tries, expected}]}], or {name, why}.
std::string GradesJson(const std::vector<Grade>& grades);
// In the Test Anything Protocol: a point for each file and exercise.
std::string GradesTap(const std::vector<Grade>& grades);

// The .json files in `folder`, by name. NotFound: it has none. Other errors: a file cannot be read.
absl::StatusOr<std::vector<AnswersFile>> ReadAnswers(const std::string& folder);

}  // namespace psring
