#include "experiments/rerun/rerun_verb.h"

#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/io/json_object.h"
#include "common/suggestions/suggestions.h"
#include "experiments/bench/runner.h"
#include "experiments/compare/experiment.h"
#include "experiments/processes/launcher.h"
#include "experiments/runs/manifest.h"
#include "experiments/runs/recorded_run.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<RecordedRun> ReadRecordedRun(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return absl::NotFoundError(absl::StrCat(folder, " is not a folder"));
  const std::string path = folder + "/manifest.json";
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(folder, " is not a run folder: it has no manifest.json"));
  }
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<RecordedRun> run = RecordedRunFromJson(text);
  const absl::Status repeatable = run.ok() ? CheckOneMachine(*run) : run.status();
  if (repeatable.ok()) return run;
  return absl::InvalidArgumentError(absl::StrCat(folder, ": ", repeatable.message()));
}

absl::StatusOr<std::vector<std::string>> BinariesOf(const std::string& verb) {
  if (verb == "bench") {
    PSRING_ASSIGN_OR_RETURN(const BenchBinaries binaries, FindBenchBinaries());
    return binaries.all();
  }
  PSRING_ASSIGN_OR_RETURN(const Binaries binaries, FindBinaries());
  return binaries.all();
}

// One line for each input file, and for the training data, that has changed since the run.
absl::StatusOr<std::vector<std::string>> ChangedInputs(const RecordedRun& run, const Interrupt& interrupt) {
  std::vector<std::string> changed;
  for (const FileMark& input : run.provenance.inputs) {
    const absl::StatusOr<FileMark> now = MarkFile(input.path);
    if (!now.ok()) {
      changed.push_back(std::string(now.status().message()));
    } else if (now->hash != input.hash) {
      changed.push_back(absl::StrCat(input.path, " has changed"));
    }
  }
  if (run.provenance.data_hash.empty()) return changed;
  PSRING_ASSIGN_OR_RETURN(const Binaries binaries, FindBinaries());
  std::vector<std::string> command = {binaries.trainer, "--check_only", "--device=cpu"};
  command.insert(command.end(), run.provenance.data_flags.begin(), run.provenance.data_flags.end());
  const absl::StatusOr<std::string> answer = RunForOutput(command, absl::Minutes(2), interrupt);
  PSRING_RETURN_IF_ERROR(interrupt.Check());
  if (!answer.ok()) {
    changed.push_back(absl::StrCat("the training data cannot be read: ", answer.status().message()));
    return changed;
  }
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(*answer, kMostTextBytes, "the answer of `trainer --check_only`"));
  if (json.Text("data_hash", kMostTextBytes).value_or("") != run.provenance.data_hash) {
    changed.push_back("the training data has changed");
  }
  return changed;
}

std::string WriterOf(const RecordedRun& run) {
  constexpr size_t kMostVersionBytes = 64;
  const auto version = [&]() -> absl::StatusOr<std::string> {
    PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(run.json, kMostTextBytes));
    PSRING_ASSIGN_OR_RETURN(const JsonObject versions, json.Object("versions"));
    return versions.Text("psring", kMostVersionBytes);
  }();
  return version.ok() ? absl::StrCat("psring ", *version, ", which wrote it") : "the psring that wrote it";
}

// FailedPrecondition: a recorded flag was renamed or removed since the run.
absl::Status CheckFlags(const CLI::App& verb, const RecordedRun& run, const Rerun& rerun) {
  for (const std::string& word : rerun.arguments) {
    if (!word.starts_with("--")) continue;
    const std::string name = CanonicalWord(word.substr(2, word.find('=') - 2));
    if (verb.get_option_no_throw(absl::StrCat("--", name)) != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat("psring ", run.verb, " has no flag --", name,
                                                      "; it was renamed or removed since this run. "
                                                      "Repeat the command with a current flag (psring ",
                                                      run.verb, " --help-all lists them), or use ",
                                                      WriterOf(run)));
  }
  return absl::OkStatus();
}

absl::Status DoAgain(const RawRerunFlags& raw, const CLI::App& app, const Interrupt& interrupt,
                     Display& display) {
  if (raw.run.empty()) {
    return absl::InvalidArgumentError("name the folder of the run to repeat, such as runs/latest");
  }
  PSRING_ASSIGN_OR_RETURN(const RecordedRun run, ReadRecordedRun(raw.run));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> binaries, BinariesOf(run.verb));
  PSRING_ASSIGN_OR_RETURN(const Provenance here, DescribeProvenance(binaries, {}));
  std::error_code error;
  // Resolves "latest", a link that the new run changes.
  const Rerun rerun = MakeRerun(run, fs::canonical(raw.run, error).string(), raw.out);
  display.Say(absl::StrCat("again:     ", CommandName(), " ", ShellText(rerun.arguments)));
  for (const std::string& words : rerun.left_out) {
    display.Say(absl::StrCat("omitted:   ", words, ", an output of the first run"));
  }
  PSRING_RETURN_IF_ERROR(CheckFlags(*app.get_subcommand(run.verb), run, rerun));
  const std::string now = ManifestJson({.machine = DescribeMachine(), .plan = {}, .provenance = here});
  for (const std::string& line : Differences(run, now)) display.Say(absl::StrCat("differs:   ", line));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> changed, ChangedInputs(run, interrupt));
  if (!changed.empty() && !raw.anyway) {
    return absl::FailedPreconditionError(absl::StrCat(
        absl::StrJoin(changed, "; "), ": the run would differ; use --anyway to run it regardless"));
  }
  for (const std::string& line : changed) display.Say(absl::StrCat("differs:   ", line));
  if (raw.dry_run) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(interrupt.Check());
  std::fflush(stdout);
  const std::string self = fs::read_symlink("/proc/self/exe", error).string();
  std::vector<std::string> words = rerun.arguments;
  words.insert(words.begin(), run.command_line.front());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(self.c_str(), argv.data());
  return absl::InternalError(absl::StrCat("cannot start ", self, ": ", strerror(errno)));
}

}  // namespace

CLI::App* AddRerun(CLI::App& app, RawRerunFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "rerun",
      "Repeat a run from its manifest, after checking that its inputs are unchanged: the same flags, rounds, "
      "steps and samples, in a new folder");
  verb->add_option("run", raw.run, "A run folder of compare, train, bench or predict")->option_text("RUN");
  verb->add_option("--out", raw.out, "Folder for the results, new or empty; default: runs/<UTC time>-<verb>")
      ->option_text("DIR");
  verb->add_flag("--anyway", raw.anyway, "Run even if the data or an input file changed");
  verb->add_flag("--dry_run", raw.dry_run, "Print the command line and the differences, then exit");
  return verb;
}

int RunRerun(const RawRerunFlags& raw, const CLI::App& app, const Interrupt& interrupt, Display& display) {
  const absl::Status status = DoAgain(raw, app, interrupt, display);
  return status.ok() ? 0 : ReportFailure("rerun", status, display);
}

}  // namespace psring
