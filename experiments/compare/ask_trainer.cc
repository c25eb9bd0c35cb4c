// The part of runner.h that finds the programs and asks the trainer what a plan needs.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/own_program.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"
#include "experiments/compare/runner.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/temporary_folder.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

// A dry run measures a step of few samples first, and one of the whole batch only if that is short.
constexpr int kFewSamples = 4;
constexpr double kMostBriefSeconds = 4;

constexpr int64_t kMostElements = int64_t{1} << 50;
constexpr size_t kMostBuckets = 1 << 20, kMostStrategies = 1000, kMostAnswerBytes = 4096;

absl::StatusOr<StrategyUpdate> UpdateFrom(const JsonObject& json) {
  constexpr double kMostFactor = 1e30;
  StrategyUpdate update;
  PSRING_ASSIGN_OR_RETURN(update.strategy, json.Text("strategy", kMostAnswerBytes));
  PSRING_ASSIGN_OR_RETURN(update.optimizer, json.Text("optimizer", kMostAnswerBytes));
  PSRING_ASSIGN_OR_RETURN(update.lr, json.Number("lr", 0, kMostFactor));
  PSRING_ASSIGN_OR_RETURN(update.momentum, json.Number("momentum", 0, kMostFactor));
  PSRING_ASSIGN_OR_RETURN(update.warnings, json.Texts("warnings", kMostStrategies, kMostAnswerBytes));
  PSRING_ASSIGN_OR_RETURN(update.refused, json.Text("refused", kMostAnswerBytes));
  return update;
}

}  // namespace

absl::StatusOr<Binaries> FindBinaries() {
  Binaries binaries;
  PSRING_ASSIGN_OR_RETURN(binaries.trainer, FindProgram("trainer"));
  PSRING_ASSIGN_OR_RETURN(binaries.ps_server, FindProgram("ps_server"));
  return binaries;
}

absl::StatusOr<Probe> CheckWithTrainer(const Binaries& binaries, const TrainingOptions& training,
                                       const Interrupt& interrupt) {
  std::vector<std::string> command = {binaries.trainer, "--check_only"};
  for (const std::string& argument : TrainingArguments(training)) command.push_back(argument);
  absl::StatusOr<std::string> text = RunForOutput(command, absl::Minutes(2), interrupt);
  if (!text.ok()) {
    // A message of the trainer is about the input; anything else is a crash.
    absl::string_view message = text.status().message();
    if (!absl::ConsumePrefix(&message, "trainer: ")) return text.status();
    return absl::FailedPreconditionError(message);
  }
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(*text, kMostTextBytes, "the answer of `trainer --check_only`"));
  Probe probe;
  PSRING_ASSIGN_OR_RETURN(probe.samples, json.WholeNumber<int64_t>("samples", 1, kMostElements));
  PSRING_ASSIGN_OR_RETURN(probe.test_samples, json.WholeNumber<int64_t>("test_samples", 0, kMostElements, 0));
  PSRING_ASSIGN_OR_RETURN(probe.predictions, json.WholeNumber("predictions", 1, INT32_MAX, 1));
  PSRING_ASSIGN_OR_RETURN(probe.parameters, json.WholeNumber<int64_t>("parameters", 0, kMostElements));
  PSRING_ASSIGN_OR_RETURN(probe.bucket_elements,
                          json.WholeNumbers("bucket_elements", kMostBuckets, 0, kMostElements));
  PSRING_ASSIGN_OR_RETURN(probe.data_hash, json.Text("data_hash", kMostAnswerBytes, ""));
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> updates, json.Objects("updates", kMostStrategies));
  for (const JsonObject& update : updates) {
    PSRING_ASSIGN_OR_RETURN(probe.updates.emplace_back(), UpdateFrom(update));
  }
  return probe;
}

absl::Status TimeTrainer(const Binaries& binaries, const TrainingOptions& training, bool briefly,
                         const Interrupt& interrupt, Display& display, Probe& probe) {
  TrainingOptions moment = training;
  moment.strategy = "single";
  moment.micro_batches = 1;
  moment.samples = 0;
  moment.epochs = 0;
  moment.evaluate = false;
  moment.eval_every = 0;
  moment.clock = "wall";
  moment.compute_ms.clear();
  moment.network_ms = moment.serve_ms = "none";
  moment.straggler = "none";
  moment.jitter_ms = "none";
  moment.checkpoint_dir.clear();
  moment.checkpoint_every = 0;
  moment.resume.clear();
  moment.max_restarts = 0;
  const auto time = [&](TrainingOptions steps) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const Configuration single, MakeConfiguration("single", 1, steps, probe, 1));
    PSRING_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create());
    PSRING_ASSIGN_OR_RETURN(const Launched launched, Launch(single, folder.path(), "measuring one step: ", 60,
                                                            binaries, Site(), interrupt, display));
    display.Clear();
    PSRING_ASSIGN_OR_RETURN(const RunFigures figures, FiguresOf(single, launched.records));
    // The median, because the first steps of a process are often disturbed. Plans need durations that
    // are not divided by --scale.
    probe.step_samples = WorkerBatch(single.training);
    probe.step_s = 1e-3 * single.training.time_scale * Quantile(figures.every_step_ms, 0.5);
    const auto count = static_cast<double>(steps.warmup_steps + steps.steps);
    probe.launch_s = std::max(0.05, launched.wall_s - count * probe.step_s);
    return absl::OkStatus();
  };
  const bool replays = !training.workload.empty();  // on a timer, so one step is enough
  moment.warmup_steps = replays ? 0 : 2;
  moment.steps = replays ? 1 : 3;
  if (!briefly || replays) return time(moment);
  TrainingOptions few = moment;
  few.global_batch = 0;
  few.batch = std::min(kFewSamples, training.batch);
  few.warmup_steps = few.steps = 1;
  PSRING_RETURN_IF_ERROR(time(few));
  const double samples =
      static_cast<double>(training.global_batch > 0 ? training.global_batch : training.batch);
  const double whole_s = probe.step_s * samples / static_cast<double>(probe.step_samples);
  return whole_s * static_cast<double>(moment.warmup_steps + moment.steps) > kMostBriefSeconds
             ? absl::OkStatus()
             : time(moment);
}

}  // namespace psring
