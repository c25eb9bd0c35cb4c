#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "common/workloads/workload.h"
#include "experiments/design/plan.h"
#include "experiments/design/rates.h"

namespace psring {
namespace {

constexpr double kMargin = 1.2;  // of suggested budgets, because durations are estimates

// The accuracy trainings may be left out if no flag is about them.
bool MayLeaveAccuracyOut(const CompareOptions& asked, const Plan& plan) {
  return plan.accuracy_fitted && asked.target_accuracy == 0 && CountOfRates(asked) == 0;
}

// Flags that make the plan shorter.
std::string ShorteningFlags(const CompareOptions& asked, const Plan& plan) {
  std::vector<std::string> fewer;
  if (asked.repeats > 1) fewer.push_back("--repeats");
  if (asked.training.steps > 0) fewer.push_back("--steps");
  if (asked.training.samples > 0) fewer.push_back("--samples");
  if (asked.training.epochs > 0) fewer.push_back("--epochs");
  if (CountOfRates(asked) > 0) fewer.push_back(asked.lr_factors.empty() ? "--lr" : "--tune");
  if (plan.cost.size() > 1) {
    fewer.push_back("--strategies");
    fewer.push_back("--workers");
  }
  if (fewer.empty()) return "";
  const std::string last = fewer.back();
  fewer.pop_back();
  return fewer.empty() ? Tr(", or fewer $0", last)
                       : Tr(", or fewer $0 or $1", absl::StrJoin(fewer, ", "), last);
}

absl::Status TooShort(const CompareOptions& asked, double spent_s, const Plan& plan) {
  const double needed_s = spent_s + plan.expected_s + kReportSeconds;
  const bool trains = plan.simulated || !plan.accuracy.empty();
  return InvalidTr(
      "--time_budget $0 is too short: $1 of $2 launches$3 and their preparation take about $4; use "
      "--time_budget $5$6",
      HumanSeconds(asked.time_budget_s), RoundsText(plan.rounds), plan.cost.size(),
      trains ? Tr(", the trainings") : "", HumanSeconds(needed_s),
      HumanSeconds(std::ceil(kMargin * needed_s)), ShorteningFlags(asked, plan));
}

// The recorded workload of the model that is trained; empty: there is none.
std::string WorkloadOf(const TrainingOptions& training) {
  if (!training.workload.empty()) return "";
  for (const std::string& name : WorkloadNames()) {
    if (CanonicalWord(name) == CanonicalWord(training.model)) return name;
  }
  return "";
}

}  // namespace

std::string LongPlanAdvice(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           const Plan& plan) {
  const double needed_s = spent_s + plan.expected_s + kReportSeconds;
  CompareOptions limited = asked;
  limited.time_budget_s = kMaxUnaskedSeconds;
  Plan shorter = plan;
  const bool fits = FitIntoBudget(limited, probe, cores, spent_s, shorter).ok();
  const std::string workload = WorkloadOf(asked.training);
  return Tr(
      "this takes about $0; to start it, add --time_budget $1$2$3", HumanSeconds(plan.expected_s),
      HumanSeconds(std::ceil(kMargin * needed_s)),
      fits ? Tr("; for a shorter comparison, --time_budget $0", HumanSeconds(kMaxUnaskedSeconds))
           : ShorteningFlags(asked, plan),
      workload.empty() ? "" : Tr("; to replay recorded times instead of computing, --workload $0", workload));
}

absl::Status FitIntoBudget(const CompareOptions& asked, const Probe& probe, int cores, double spent_s,
                           Plan& plan) {
  const double left_s = asked.time_budget_s - spent_s - kReportSeconds;
  const Plan before = plan;
  const auto too_long = [&] {
    if (!plan.simulated) plan.expected_s = plan.rounds * plan.round_s + plan.accuracy_s;
    return plan.expected_s > left_s;
  };
  while (!plan.simulated && asked.training.steps == 0 && plan.steps > kFewestSteps && too_long()) {
    SetSteps(std::max(kFewestSteps, plan.steps * 3 / 4), probe, cores, plan);
  }
  if (too_long() && ShortenAccuracy(left_s - plan.rounds * plan.round_s, 1, plan)) {
    plan.accuracy_s = AccuracySeconds(plan, plan.accuracy.front().training.samples,
                                      TrainingsOfEach(asked, plan), probe, cores);
  }
  while (plan.rounds_fitted && plan.rounds > kFewestRounds && too_long()) --plan.rounds;
  if (too_long() && !plan.accuracy.empty() && MayLeaveAccuracyOut(asked, plan)) {
    plan.accuracy.clear();
    plan.accuracy_s = 0;
    // The time that the trainings would take may allow more rounds again.
    if (plan.rounds_fitted) {
      plan.rounds = std::clamp(static_cast<int>(left_s / plan.round_s), plan.rounds, before.rounds);
    }
  }
  while (plan.rounds_fitted && plan.rounds > 1 && too_long()) --plan.rounds;
  if (too_long()) return TooShort(asked, spent_s, plan);
  if (plan.rounds < before.rounds || plan.steps < before.steps || plan.accuracy_s < before.accuracy_s) {
    plan.notes.push_back(Tr(plan.accuracy.empty() && !before.accuracy.empty()
                                ? TrNoop("shortened to fit into --time_budget $0: $1 of $2 measured steps, "
                                         "no accuracy trainings; a longer budget adds them")
                                : TrNoop("shortened to fit into --time_budget $0: $1 of $2 measured steps; "
                                         "a longer budget gives narrower intervals"),
                            HumanSeconds(asked.time_budget_s), RoundsText(plan.rounds), plan.steps));
  }
  return absl::OkStatus();
}

}  // namespace psring
