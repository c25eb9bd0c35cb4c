#include "experiments/psring.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/cuda/cuda_device.h"
#include "common/device/memory_limit.h"
#include "common/device/task_limit.h"
#include "common/rendezvous/launched_as.h"
#include "common/text/translate.h"
#include "experiments/design/plan.h"
#include "experiments/engine/failure.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/nodes.h"
#include "experiments/one_gpu.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/verbs/bench/bench.h"
#include "experiments/verbs/compare/compare.h"
#include "experiments/verbs/compare/prepare.h"
#include "experiments/verbs/doctor/doctor.h"
#include "experiments/verbs/explain/explain_verb.h"
#include "experiments/verbs/predict/predict.h"
#include "experiments/verbs/report/report_verb.h"
#include "experiments/verbs/results/results.h"

namespace psring {

namespace {

constexpr int64_t kTasksOfAProgram = 4;  // before a verb knows what it starts

// Of a command line that may be invalid, for its errors.
void SetLanguageOf(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with("--lang=")) SetLanguage(LanguageNamed(words[i].substr(7)));
    if (words[i] == "--lang" && i + 1 < words.size()) SetLanguage(LanguageNamed(words[i + 1]));
  }
}

}  // namespace

int PsringMain(int argc, char** argv) {
  const absl::StatusOr<NodeLauncher> launcher = ReadNodeLauncher(ProcessEnvironment());
  ForgetLauncher();  // our processes are numbered by us
  CLI::App app("Compares ways to synchronize the replicas of data-parallel training.", "psring");
  app.require_subcommand(1);
  RawExperimentFlags compare_raw = CompareDefaults(), train_raw;
  compare_raw.launcher = train_raw.launcher = launcher;
  CLI::App* compare = AddCompare(app, compare_raw);
  AddTrain(app, train_raw);
  RawBenchFlags bench_raw;
  bench_raw.launcher = launcher;
  CLI::App* bench = AddBench(app, bench_raw);
  std::string replayed;
  CLI::App* replay =
      app.add_subcommand("replay", "Repeat the asynchronous runs of a run's folder and compare the weights");
  replay->add_option("run", replayed, "A run folder, such as runs/latest, or one of its record folders")
      ->option_text("RUN [the latest run]");
  RawPredictFlags predict_raw;
  CLI::App* predict = AddPredict(app, predict_raw);
  CLI::App* doctor =
      app.add_subcommand("doctor", "Check this machine's requirements, and print a fix for each problem");
  AddLanguageFlag(*doctor, "en or zh");
  RawExplainFlags explain_raw;
  CLI::App* explain = AddExplain(app, explain_raw);
  RawReportFlags report_raw;
  CLI::App* report = AddReport(app, report_raw);
  RawResultsFlags results_raw;
  CLI::App* results = AddResults(app, results_raw);
  SetLanguageOf({argv, argv + argc});
  const std::vector<std::string> command_line = ParseOrExit(app, argc, argv);

  // The file may be somebody else's.
  const bool from_file = std::any_of(
      argv, argv + argc, [](const char* word) { return std::string_view(word).starts_with("--config"); });
  if (from_file && command_line.size() > 2) {
    Note(absl::StrCat("psring ", command_line[1]),
         absl::StrCat("flags: ", ShellText({command_line.begin() + 2, command_line.end()})));
  }
  Display display(stdout, isatty(STDOUT_FILENO) == 1);
  if (report->parsed()) return RunReport(report_raw, display);
  if (results->parsed()) return RunResults(results_raw, display);
  if (explain->parsed()) return RunExplain(explain_raw);

  // The verbs below start processes; a signal ends them.
  absl::Status allowed = CheckAddressSpace();
  if (allowed.ok()) allowed = AllowTasks(kTasksOfAProgram, "psring and its programs");
  if (!allowed.ok()) return Fail("psring", std::string(allowed.message()), 2);
  const Interrupt interrupt;
  const auto run_verb = [&]() -> int {
    if (doctor->parsed()) return RunDoctor(interrupt);
    if (replay->parsed()) {
      const absl::StatusOr<std::string> run = replayed.empty() ? LatestRun() : replayed;
      return run.ok() ? RunReplay(*run, interrupt, display) : ReportFailure("replay", run.status(), display);
    }
    if (bench->parsed()) {
      const absl::StatusOr<BenchFlags> bench_flags = UnderstandBench(bench_raw, command_line);
      if (!bench_flags.ok()) return Fail("psring bench", std::string(bench_flags.status().message()), 2);
      return RunBench(*bench_flags, interrupt, display);
    }
    if (predict->parsed()) {
      const absl::StatusOr<PredictFlags> predict_flags = UnderstandPredict(predict_raw, command_line);
      if (!predict_flags.ok())
        return Fail("psring predict", std::string(predict_flags.status().message()), 2);
      return RunPredict(*predict_flags, interrupt, display);
    }
    const bool comparing = compare->parsed();
    absl::StatusOr<ExperimentFlags> flags =
        comparing ? UnderstandCompare(compare_raw, command_line) : UnderstandTrain(train_raw, command_line);
    if (!flags.ok())
      return Fail(comparing ? "psring compare" : "psring train", std::string(flags.status().message()), 2);
    if (const absl::Status named = NameStrategies(*flags); !named.ok()) {
      return ReportFailure(comparing ? "compare" : "train", named, display);
    }
    if (comparing && !flags->nodes.several() && GoesBeyondOneGpu(flags->options, CudaDeviceCount())) {
      return CompareOnOneGpu(*flags, !compare_raw.workers.empty(), interrupt, display);
    }
    return comparing ? RunCompare(*flags, interrupt, display) : RunTrain(*flags, interrupt, display);
  };
  const int code = run_verb();
  return code != 0 && interrupt.signal() != 0 ? 128 + interrupt.signal() : code;
}

}  // namespace psring
