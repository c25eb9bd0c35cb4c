#include "experiments/plan/plan_text.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/units.h"
#include "experiments/texts/errors.h"
#include "experiments/texts/findings.h"
#include "experiments/texts/plan.h"
#include "experiments/texts/unit.h"
#include "experiments/texts/wrap.h"

namespace psring {

std::string DescribePlan(const Plan& plan, Language language) {
  const auto names = [](const std::vector<Configuration>& configurations) {
    return absl::StrJoin(configurations, ", ", [](std::string* out, const Configuration& configuration) {
      absl::StrAppend(out, configuration.name());
    });
  };
  const auto notes = [&] {
    std::string lines;
    for (const std::string& note : plan.notes)
      lines += Wrap(InLanguage(language, note), In(language, kNoteLine));
    return lines;
  };
  const std::string indent(11, ' ');
  if (plan.simulated) {
    std::string text = Say(language, kTrainingsLine, plan.rounds, HumanSeconds(plan.expected_s)) + "\n";
    text += Wrap(names(plan.cost), indent) + notes();
    return absl::StrCat(text, Say(language, kExpectedLine, HumanSeconds(plan.expected_s)), "\n");
  }
  std::string text = Say(language, kCostLine, RoundsText(plan.rounds, language), plan.cost.size(),
                         plan.warmup_steps, plan.steps, HumanSeconds(plan.rounds * plan.round_s)) +
                     "\n";
  text += Wrap(names(plan.cost), indent);
  if (!plan.accuracy.empty()) {
    const TrainingOptions& training = plan.accuracy.front().training;
    const std::string budget = training.samples > 0 ? Say(language, kSamplesBudget, training.samples,
                                                          UnitOf(training.reads_text(), language))
                                                    : Say(language, kEpochsBudget, training.epochs);
    const size_t trainings = plan.accuracy.size() * static_cast<size_t>(plan.accuracy_repeats);
    const std::string count =
        trainings == 1 ? In(language, kOneTraining) : Say(language, kTrainings, trainings);
    absl::StrAppend(&text, Say(language, kAccuracyLine, count, budget, HumanSeconds(plan.accuracy_s)), "\n");
    text += Wrap(names(plan.accuracy), indent);
  }
  return absl::StrCat(text, notes(), Say(language, kExpectedLine, HumanSeconds(plan.expected_s)), "\n");
}

std::string RoundsText(int rounds, Language language) {
  return rounds == 1 ? In(language, kOneRound) : Say(language, kRounds, rounds);
}

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
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a time; write 90s, 3m or 1h"));
  }
  if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a positive time"));
  }
  return absl::ToDoubleSeconds(duration);
}

}  // namespace psring
