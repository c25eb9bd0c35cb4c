// Restores a resumed run from its folder.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "experiments/compare/experiment.h"
#include "experiments/plan/plan_text.h"
#include "experiments/texts/plan.h"

namespace psring {

absl::StatusOr<std::vector<TriedRate>> Experiment::ReadRates() const {
  const std::string path = folder_.path() + "/rates.csv";
  PSRING_ASSIGN_OR_RETURN(const std::string csv, ReadFile(path));
  absl::StatusOr<std::vector<TriedRate>> tried = RatesFromCsv(csv);
  if (tried.ok()) return tried;
  return absl::DataLossError(absl::StrCat(path, ": ", tried.status().message()));
}

bool Experiment::all_done() const {
  const Plan& plan = manifest_.plan;
  return manifest_.rounds_done >= plan.rounds &&
         manifest_.trainings_done.size() >= plan.accuracy.size() * static_cast<size_t>(plan.accuracy_repeats);
}

bool Experiment::HasTraining(const Configuration& configuration, int repeat) const {
  const std::vector<std::string>& done = manifest_.trainings_done;
  return std::find(done.begin(), done.end(), LabelOf(configuration, "accuracy", repeat).records) !=
         done.end();
}

absl::StatusOr<Experiment::Done> Experiment::Read(const Configuration& configuration, const std::string& part,
                                                  int repeat) const {
  Done done{.label = LabelOf(configuration, part, repeat), .configuration = configuration};
  Configuration seeded = configuration;
  seeded.training.seed = done.label.seed;
  absl::StatusOr<Launched> launched = ReadLaunched(seeded, folder_.path() + "/" + done.label.records);
  if (!launched.ok()) {
    return absl::DataLossError(absl::StrCat("--resume: the records of a finished launch cannot be read: ",
                                            launched.status().message()));
  }
  PSRING_ASSIGN_OR_RETURN(done.figures, FiguresOf(seeded, launched->records));
  done.figures.foreign_cpu_pct = launched->foreign_cpu_pct;
  done.figures.other_psring = launched->other_psring;
  done.records = std::move(launched->records);
  return done;
}

absl::Status Experiment::Restore(const ResumedRun& resumed) {
  manifest_.command_line = resumed.recorded.command_line;
  manifest_.provenance = resumed.recorded.provenance;
  manifest_.started_utc = resumed.started_utc;
  manifest_.earlier_s = resumed.wall_s;
  std::vector<Done> all;
  for (int round = 0; round < resumed.plan.rounds_done; ++round) {
    for (const Configuration& configuration : manifest_.plan.cost) {
      PSRING_ASSIGN_OR_RETURN(all.emplace_back(),
                              Read(configuration, manifest_.plan.simulated ? "training" : "cost", round));
    }
  }
  const std::vector<std::string>& trained = resumed.plan.trainings_done;
  for (int repeat = 0; repeat < manifest_.plan.accuracy_repeats; ++repeat) {
    for (const Configuration& configuration : manifest_.plan.accuracy) {
      const std::string records = LabelOf(configuration, "accuracy", repeat).records;
      if (std::find(trained.begin(), trained.end(), records) == trained.end()) continue;
      PSRING_ASSIGN_OR_RETURN(all.emplace_back(), Read(configuration, "accuracy", repeat));
    }
  }
  // The files may contain a part of an unfinished round.
  PSRING_RETURN_IF_ERROR(folder_.Clear());
  restoring_ = true;
  for (const Done& done : all) PSRING_RETURN_IF_ERROR(Keep(done));
  restoring_ = false;
  manifest_.rounds_done = resumed.plan.rounds_done;
  const std::string note = Say(language(), kResumed, RoundsText(resumed.plan.rounds_done, language()),
                               manifest_.plan.rounds, trained.size());
  this->note(note);
  display_.Say(absl::StrCat(In(language(), kNoteLine), note));
  return absl::OkStatus();
}

}  // namespace psring
