// Restores a resumed run from its folder.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/text/translate.h"
#include "experiments/compare/experiment.h"
#include "experiments/plan/plan_text.h"

namespace psring {

absl::StatusOr<std::vector<TriedRate>> Experiment::ReadRates() const {
  const std::string path = folder_.path() + "/rates.csv";
  PSRING_ASSIGN_OR_RETURN(const std::string csv, ReadFile(path));
  absl::StatusOr<std::vector<TriedRate>> tried = RatesFromCsv(csv);
  if (!tried.ok()) return absl::DataLossError(absl::StrCat(path, ": ", tried.status().message()));
  const Plan& plan = manifest_.plan;
  for (const Configuration& configuration : plan.simulated ? plan.cost : plan.accuracy) {
    const bool picked = std::any_of(tried->begin(), tried->end(), [&](const TriedRate& rate) {
      return rate.picked && rate.strategy == configuration.strategy.name &&
             rate.workers == configuration.workers;
    });
    if (picked || !configuration.training.evaluate) continue;
    return absl::DataLossError(absl::StrCat(path, " has no rate for ", configuration.name()));
  }
  return tried;
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
  PSRING_RETURN_IF_ERROR(launched.status());
  PSRING_ASSIGN_OR_RETURN(done.figures, FiguresOf(seeded, launched->records));
  done.figures.foreign_cpu_pct = launched->foreign_cpu_pct;
  done.figures.other_psring = launched->other_psring;
  done.records = std::move(launched->records);
  return done;
}

absl::StatusOr<std::vector<Experiment::Done>> Experiment::ReadRound(int round) const {
  std::vector<Done> launches;
  for (const Configuration& configuration : manifest_.plan.cost) {
    PSRING_ASSIGN_OR_RETURN(launches.emplace_back(),
                            Read(configuration, manifest_.plan.simulated ? "training" : "cost", round));
  }
  return launches;
}

// After a power cut, records may be damaged: these rounds and trainings are repeated.
absl::Status Experiment::Restore(const ResumedRun& resumed) {
  manifest_.command_line = resumed.recorded.command_line;
  manifest_.provenance = resumed.recorded.provenance;
  manifest_.started_utc = resumed.started_utc;
  manifest_.earlier_s = resumed.wall_s;
  std::vector<Done> all;
  const auto repeats = [&](const std::string& what, const absl::Status& why) {
    const std::string text =
        Tr("$0 is repeated, because its records cannot be read: $1", what, why.message());
    note(text);
    display_.Note(text);
  };
  // All rounds use the rates that were tried before them.
  absl::Status rates;
  const bool tunes = CountOfRates(flags_.options) > 0;
  if (tunes) rates = ReadRates().status();
  if (!rates.ok()) repeats(Tr("every round"), rates);
  for (int round = 0; round < resumed.plan.rounds_done && rates.ok(); ++round) {
    absl::StatusOr<std::vector<Done>> launches = ReadRound(round);
    if (launches.ok()) {
      rounds_.insert(round);
      std::move(launches->begin(), launches->end(), std::back_inserter(all));
    } else {
      repeats(Tr("round $0", round + 1), launches.status());
    }
  }
  const bool has_rates = !tunes || !rounds_.empty();
  const std::vector<std::string>& trained = resumed.plan.trainings_done;
  for (int repeat = 0; repeat < manifest_.plan.accuracy_repeats; ++repeat) {
    for (const Configuration& configuration : manifest_.plan.accuracy) {
      const std::string records = LabelOf(configuration, "accuracy", repeat).records;
      if (std::find(trained.begin(), trained.end(), records) == trained.end() || !has_rates) continue;
      absl::StatusOr<Done> training = Read(configuration, "accuracy", repeat);
      if (training.ok()) {
        all.push_back(*std::move(training));
      } else {
        repeats(records, training.status());
      }
    }
  }
  // The files may contain a part of an unfinished round.
  PSRING_RETURN_IF_ERROR(folder_.Clear());
  for (const Done& done : all) PSRING_RETURN_IF_ERROR(Keep(done));
  manifest_.rounds_done = static_cast<int>(rounds_.size());
  const std::string text =
      Tr("resumed after $0 of $1 and $2 accuracy trainings", RoundsText(manifest_.rounds_done),
         manifest_.plan.rounds, manifest_.trainings_done.size());
  note(text);
  display_.Note(text);
  return absl::OkStatus();
}

}  // namespace psring
