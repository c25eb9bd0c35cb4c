#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "common/cli/delays.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/design/estimate.h"
#include "experiments/design/plan.h"

namespace psring {
namespace {

// The part of a name, after `before`, of another kind than the default one.
std::string OtherContextParallel(const TrainingOptions& training, const char* before) {
  const std::string& kind = training.context_parallel;
  return kind == kDefaultContextParallel.name ? "" : absl::StrCat(before, kind);
}

}  // namespace

std::string DescribePlan(const Plan& plan) {
  const auto names = [](const std::vector<Configuration>& configurations) {
    return absl::StrJoin(configurations, ", ", [](std::string* out, const Configuration& configuration) {
      absl::StrAppend(out, configuration.name());
    });
  };
  const auto notes = [&] {
    std::string lines;
    for (const std::string& note : plan.notes) lines += Wrap(note, Tr("note:      "));
    return lines;
  };
  const std::string indent(11, ' ');
  if (plan.simulated) {
    std::string text =
        Tr("trainings: $0 of each in simulated time, about $1", plan.rounds, HumanSeconds(plan.expected_s)) +
        "\n";
    text += Wrap(names(plan.cost), indent) + notes();
    return absl::StrCat(text, Tr("expected:  $0", HumanSeconds(plan.expected_s)), "\n");
  }
  std::string text = Tr("cost:      $0 of $1 launches, $2 + $3 steps each (warm-up + measured), about $4",
                        RoundsText(plan.rounds), plan.cost.size(), plan.warmup_steps, plan.steps,
                        HumanSeconds(plan.rounds * plan.round_s)) +
                     "\n";
  text += Wrap(names(plan.cost), indent);
  if (!plan.accuracy.empty()) {
    const TrainingOptions& training = plan.accuracy.front().training;
    const std::string budget = training.samples > 0
                                   ? Tr("$0 $1", training.samples, UnitOf(training.reads_text()))
                                   : Tr("$0 epochs", training.epochs);
    const size_t trainings = plan.accuracy.size() * static_cast<size_t>(plan.accuracy_repeats);
    const std::string count = trainings == 1 ? Tr("1 training") : Tr("$0 trainings", trainings);
    absl::StrAppend(
        &text,
        Tr("accuracy:  $0 of $1 over all workers, about $2", count, budget, HumanSeconds(plan.accuracy_s)),
        "\n");
    text += Wrap(names(plan.accuracy), indent);
  }
  return absl::StrCat(text, notes(), Tr("expected:  $0", HumanSeconds(plan.expected_s)), "\n");
}

void AddPipelineNotes(Plan& plan) {
  for (const Configuration& configuration : plan.cost) {
    const TrainingOptions& training = configuration.training;
    if (training.pp == 1) continue;
    const std::string note =
        Tr("$0: a replica's step is $1 x $2 samples (--micro_batches x --batch); without messages a worker "
           "would be idle in $3% of it ($4)",
           configuration.layout(), training.micro_batches, training.batch, Fixed(100 * BubbleOf(training), 0),
           training.program);
    if (std::ranges::count(plan.notes, note) == 0) plan.notes.push_back(note);
  }
}

std::string Configuration::pipeline() const {
  if (training.pp == 1) return "";
  return absl::StrCat(
      layout(), " ", training.program, names_micro_batches ? absl::StrCat(" m", training.micro_batches) : "",
      names_cuts ? absl::StrCat(" cut ", training.cuts) : "", training.copy_streams == 1 ? " copy 1" : "");
}

std::string Configuration::name() const {
  return absl::StrCat(strategy.name, " x ", workers,
                      servers() > 1 ? absl::StrCat(" on ", servers(), " servers") : "",
                      training.server_wire == "stream" ? " (stream)" : "",
                      training.pp > 1 ? absl::StrCat(" (", pipeline(), ")")
                      : divides()     ? absl::StrCat(" (", layout(), ")")
                                      : "",
                      OtherContextParallel(training, " "));
}

std::string Configuration::folder() const {
  // "ps-ssp-2-4": some tools do not support colons in paths.
  return absl::StrCat(
      absl::StrReplaceAll(strategy.name, {{":", "-"}}), "-", workers,
      servers() > 1 ? absl::StrCat("-on-", servers()) : "", training.server_wire == "stream" ? "-stream" : "",
      training.tp > 1 ? absl::StrCat("-tp", training.tp) : "",
      training.cp > 1 ? absl::StrCat("-cp", training.cp) : "", OtherContextParallel(training, "-"),
      training.pp > 1
          ? absl::StrCat("-pp", training.pp, "-", absl::StrReplaceAll(training.program, {{":", "-"}}), "-m",
                         training.micro_batches, names_cuts ? absl::StrCat("-cut-", training.cuts) : "",
                         training.copy_streams == 1 ? "-copy-1" : "")
          : "");
}

std::string RoundsText(int rounds) { return rounds == 1 ? Tr("1 round") : Tr("$0 rounds", rounds); }

std::string UnitOf(bool reads_text) { return Tr(reads_text ? TrNoop("tokens") : TrNoop("samples")); }

std::string HumanSeconds(double seconds) {
  const int64_t whole = std::max<int64_t>(1, std::llround(seconds));
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
}

absl::StatusOr<double> ParseSeconds(const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (const std::optional<absl::Duration> with_units = ParseDurationText(text)) {
    duration = *with_units;
  } else if (!absl::ParseDuration(text, &duration)) {
    return InvalidTr("'$0' is not a time; write 90s, 3m or 1h", text);
  }
  if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return InvalidTr("'$0' is not a positive time", text);
  }
  return absl::ToDoubleSeconds(duration);
}

std::string DescribeDisturbances(const TrainingOptions& training) {
  std::vector<std::string> parts;
  const absl::StatusOr<std::vector<Straggler>> stragglers = ParseStragglers(training.straggler);
  if (stragglers.ok()) {
    for (const Straggler& straggler : *stragglers) {
      parts.push_back(Tr("worker $0 takes $1 times as long to compute", straggler.worker, straggler.factor));
    }
  }
  const absl::StatusOr<TimeDistribution> jitter = ParseTimeDistribution(training.jitter_ms);
  if (jitter.ok() && !jitter->is_zero()) {
    parts.push_back(Tr("every step of every worker is delayed by $0 ms ($1 ms on average)",
                       training.jitter_ms, ThreeDigits(jitter->mean_ms())));
  }
  return absl::StrJoin(parts, Tr(", "));
}

}  // namespace psring
