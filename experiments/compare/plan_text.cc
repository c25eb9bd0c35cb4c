#include "experiments/compare/plan_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "experiments/compare/wrap.h"

namespace psring {

std::string DescribePlan(const Plan& plan) {
  const auto names = [](const std::vector<Configuration>& configurations) {
    return absl::StrJoin(configurations, ", ", [](std::string* out, const Configuration& configuration) {
      absl::StrAppend(out, configuration.name());
    });
  };
  const std::string indent(11, ' ');
  if (plan.simulated) {
    std::string text = absl::StrFormat("trainings: %d of each in simulated time, about %s\n", plan.rounds,
                                       HumanSeconds(plan.expected_s));
    text += Wrap(names(plan.cost), indent);
    for (const std::string& note : plan.notes) text += Wrap(note, "note:      ");
    return absl::StrCat(text, "expected:  ", HumanSeconds(plan.expected_s), "\n");
  }
  std::string text =
      absl::StrFormat("cost:      %d %s of %d launches, %d + %d steps each (warm-up + measured), about %s\n",
                      plan.rounds, plan.rounds == 1 ? "round" : "rounds", plan.cost.size(), plan.warmup_steps,
                      plan.steps, HumanSeconds(plan.rounds * plan.round_s));
  text += Wrap(names(plan.cost), indent);
  if (!plan.accuracy.empty()) {
    const TrainingOptions& training = plan.accuracy.front().training;
    const std::string budget = training.samples > 0 ? absl::StrCat(training.samples, " samples")
                                                    : absl::StrFormat("%g epochs", training.epochs);
    const size_t trainings = plan.accuracy.size() * static_cast<size_t>(plan.accuracy_repeats);
    absl::StrAppendFormat(&text, "accuracy:  %d %s of %s over all workers, about %s\n", trainings,
                          trainings == 1 ? "training" : "trainings", budget, HumanSeconds(plan.accuracy_s));
    text += Wrap(names(plan.accuracy), indent);
  }
  for (const std::string& note : plan.notes) text += Wrap(note, "note:      ");
  absl::StrAppend(&text, "expected:  ", HumanSeconds(plan.expected_s), "\n");
  return text;
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
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a time; write 90s, 3m or 1h"));
  }
  if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a time above 0"));
  }
  return absl::ToDoubleSeconds(duration);
}

}  // namespace psring
