// Asks the trainer for its speed, and whether configurations fit into the memory of this host.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/launch/temporary_folder.h"
#include "experiments/stats/statistics.h"
#include "experiments/verbs/compare/prepare.h"

namespace psring {
namespace {

// A dry run measures a step of few samples first, and one of the whole batch only if that is short.
constexpr int kFewSamples = 4;
constexpr double kMaxBriefSeconds = 4;
// Of a model that one process cannot train.
constexpr double kAssumedStepSeconds = 1, kAssumedLaunchSeconds = 5;

}  // namespace

absl::Status TimeTrainer(const Binaries& binaries, const TrainingOptions& training, bool briefly,
                         const Interrupt& interrupt, Display& display, Probe& probe) {
  TrainingOptions moment = training;
  moment.strategy = "single";
  moment.reference_workers = 1;
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
  LeavePipelineOut(moment);
  const bool checks_memory = moment.memory != "none";
  if (checks_memory) moment.memory.clear();  // the limit of a worker, which may have a part of the model
  if (checks_memory && probe.free_bytes > 0 && probe.memory_bytes > probe.free_bytes) {
    display.Note(
        Tr("the whole model does not fit into one device, so its step is not measured; the plan assumes $0 s",
           kAssumedStepSeconds));
    probe.step_s = kAssumedStepSeconds;
    probe.launch_s = kAssumedLaunchSeconds;
    return absl::OkStatus();
  }
  const auto time = [&](const TrainingOptions& steps) -> absl::Status {
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
  return whole_s * static_cast<double>(moment.warmup_steps + moment.steps) > kMaxBriefSeconds
             ? absl::OkStatus()
             : time(moment);
}

namespace {

// False only if even ranks with the whole model, a second gradient and all micro-batches in flight fit.
bool MayBeTooLarge(const Configuration& configuration, const Probe& probe) {
  constexpr double kMaxOfAWhole = 2;
  const TrainingOptions& training = configuration.training;
  if (configuration.simulated() || configuration.strategy.replicates || training.memory == "none") {
    return false;
  }
  if (!training.memory.empty()) return true;
  const double in_flight = training.pp > 1 ? training.micro_batches : 1;
  return probe.free_bytes > 0 &&
         kMaxOfAWhole * in_flight * configuration.ranks() * static_cast<double>(probe.memory_bytes) >
             static_cast<double>(probe.free_bytes);
}

}  // namespace

absl::Status CheckMemoryOf(const std::vector<Configuration>& configurations, const ExperimentFlags& flags,
                           const Binaries& binaries, const Interrupt& interrupt, Probe& probe) {
  if (flags.nodes.several()) return absl::OkStatus();
  size_t fitting = 0;
  absl::Status refused;
  for (const Configuration& configuration : configurations) {
    if (MayBeTooLarge(configuration, probe)) {
      TrainingOptions training = configuration.training;
      training.strategy = configuration.strategy.name;
      training.steps = 0;
      const absl::Status checked =
          CheckWithTrainer(binaries, training, interrupt, configuration.ranks()).status();
      PSRING_RETURN_IF_ERROR(interrupt.Check());
      if (!checked.ok()) {
        refused = absl::Status(checked.code(), absl::StrCat(configuration.name(), ": ", checked.message()));
        if (!flags.options.tries_layouts) return refused;
        probe.too_large[configuration.folder()] = std::string(refused.message());
        continue;
      }
    }
    ++fitting;
  }
  return fitting > 0 ? absl::OkStatus() : refused;
}

}  // namespace psring
