#include <algorithm>

#include "absl/strings/str_format.h"
#include "experiments/host/machine.h"
#include "experiments/summary/summarise.h"
#include "experiments/texts/notes.h"

namespace psring {
namespace {

constexpr double kMaxSpread = 0.01;  // of shards' bytes, relative

std::string WithDigits(double value, int digits) { return absl::StrFormat("%.*f", digits, value); }

}  // namespace

std::string NoteOf(const SummaryRow& row, Language language) {
  Sentences notes(language);
  const Configuration& configuration = row.configuration;
  const TrainingOptions& training = configuration.training;
  if (configuration.simulated()) notes.Add(kNoteVirtual);
  if (configuration.scaled()) notes.Add(kNoteScaled, training.time_scale);
  const double target = configuration.target_accuracy;
  if (target > 0 && row.test_accuracy && !row.time_to_target_s) {
    notes.Add(kNoteTarget, row.reached_target, row.trainings, target);
  }
  if (configuration.oversubscribed) notes.Add(kNoteOversubscribed);
  if (const int each = training.ranks_per_process; each > 1) {
    const bool all = configuration.processes() == 1;
    const bool no_link = all && training.server_placement != "dedicated";
    const std::string link = row.link.bits_per_s == 0 ? "" : notes.Say(no_link ? kNoteNoLink : kNoteOneLink);
    notes.Add(all ? kNoteOneProcess : kNotePerProcess, each, link);
  }
  if (const int each = configuration.workers_per_push(); each > 1) notes.Add(kNoteAggregation, each);
  if (const int gpus = row.mean.gpus_shared; gpus > 0) {
    notes.Add(kNoteSharedGpus, configuration.ranks(), gpus, gpus == 1 ? "" : "s");
  }
  if (const DataParallelFigures& replicas = row.sample.data_parallel; replicas.replicas > 0) {
    notes.Add(kNoteDevice0, WithDigits(replicas.device0_alone_ms(), 2),
              WithDigits(replicas.device0_extra_mb, 1),
              row.link.bits_per_s > 0 ? notes.Say(kNoteOneMachine) : "");
  }
  // Simulated times do not depend on other programs.
  if (!configuration.simulated() && row.foreign_cpu_pct > kMaxForeignCpuPct)
    notes.Add(kNoteForeign, WithDigits(row.foreign_cpu_pct, 0));
  if (row.other_psring > 0) notes.Add(kNoteOtherPsring, row.other_psring);
  const std::vector<double>& shards = row.mean.each_server_payload_bytes;
  if (shards.size() > 1) {
    const auto [least, most] = std::minmax_element(shards.begin(), shards.end());
    if (*most > (1 + kMaxSpread) * *least)
      notes.Add(kNoteUnbalanced, WithDigits(*least, 0), WithDigits(*most, 0));
  }
  if (training.straggler != "none") notes.Add(kNoteStraggler, training.straggler);
  if (training.jitter_ms != "none") notes.Add(kNoteJitter, training.jitter_ms);
  if (row.mean.replicas_equal == false) notes.Add(kNoteReplicas);
  if (!row.mean.incidents.empty()) notes.AddText(row.mean.incidents);
  return notes.Joined(notes.list(), kSemicolon);
}

}  // namespace psring
