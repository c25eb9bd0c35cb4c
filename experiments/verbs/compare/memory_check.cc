// The part of prepare.h that asks the trainer whether configurations fit into the memory of this host.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/verbs/compare/prepare.h"

namespace psring {
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
