#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "experiments/design/plan.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr double kSpent = 6;  // seconds of preparation

struct FittedPlan {
  absl::Status status;
  Plan plan;
};

FittedPlan PlanWithin(CompareOptions asked, double budget_s) {
  asked.time_budget_s = budget_s;
  asked.time_budget_given = true;
  CompareOptions left = asked;
  left.time_budget_s = std::max(1.0, budget_s - kSpent);
  FittedPlan fitted{.plan = PlanFor(left)};
  fitted.status = FitIntoBudget(asked, TestProbe(), 2, kSpent, fitted.plan);
  return fitted;
}

// The duration after `words` in `message`.
double SecondsAfter(const std::string& words, const std::string& message) {
  EXPECT_THAT(message, Has(words));
  const std::string rest = message.substr(std::min(message.size(), message.find(words) + words.size()));
  return ParseSeconds(rest.substr(0, rest.find_first_of(",;"))).value_or(0);
}

// The time budget that an error suggests.
double SuggestedSeconds(const absl::Status& status) {
  return SecondsAfter("use --time_budget ", std::string(status.message()));
}

TEST(Budget, EveryPlanFitsOrIsRejected) {
  int fitted = 0, rejected = 0;
  for (double budget_s = 1; budget_s < 300; budget_s *= 1.15) {
    const FittedPlan got = PlanWithin({}, budget_s);
    if (!got.status.ok()) {
      ++rejected;
      continue;
    }
    ++fitted;
    const double sum_s = got.plan.rounds * got.plan.round_s + got.plan.accuracy_s;
    EXPECT_LE(kSpent + sum_s + kReportSeconds, budget_s);
    EXPECT_DOUBLE_EQ(got.plan.expected_s, sum_s);
    EXPECT_GE(got.plan.rounds, 1);
  }
  EXPECT_GT(fitted, 5);
  EXPECT_GT(rejected, 5);
}

TEST(Budget, ARejectionNamesABudgetThatWorksAndFlags) {
  const FittedPlan short_of = PlanWithin({}, 5);
  EXPECT_THAT(std::string(short_of.status.message()),
              Has("--time_budget 5s is too short: 1 round of", "or fewer --strategies or --workers"));
  EXPECT_EQ(short_of.status.message().find('\n'), std::string::npos);
  const FittedPlan works = PlanWithin({}, SuggestedSeconds(short_of.status));
  EXPECT_TRUE(works.status.ok()) << works.status;
  EXPECT_GE(works.plan.rounds, 1);
}

TEST(Budget, FlagsThatAreSetAreKept) {
  CompareOptions asked{.repeats = 8};
  asked.training.steps = 30;
  asked.training.samples = 60000;
  const FittedPlan got = PlanWithin(asked, 60);
  EXPECT_THAT(std::string(got.status.message()), Has("8 rounds of", "fewer --repeats, --steps, --samples"));
  const FittedPlan works = PlanWithin(asked, SuggestedSeconds(got.status));
  ASSERT_TRUE(works.status.ok()) << works.status;
  EXPECT_EQ(works.plan.rounds, 8);
  EXPECT_EQ(works.plan.steps, 30);
  EXPECT_EQ(works.plan.accuracy.front().training.samples, 60000);
}

TEST(Budget, AShortenedPlanSaysSo) {
  const FittedPlan whole = PlanWithin({}, 200);
  ASSERT_TRUE(whole.status.ok());
  for (const std::string& note : whole.plan.notes) EXPECT_THAT(note, Lacks("shortened"));
  const FittedPlan first = PlanWithin({}, 5);
  const FittedPlan least = PlanWithin({}, SuggestedSeconds(first.status));
  ASSERT_TRUE(least.status.ok()) << least.status;
  EXPECT_TRUE(least.plan.accuracy.empty());
  EXPECT_THAT(least.plan.notes.back(), Has("no accuracy trainings"));
}

TEST(LongPlan, AdviceNamesBudgetsThatWorkAndRecordedTimes) {
  CompareOptions asked{.repeats = 30};
  asked.training.samples = 6'000'000;
  const Plan plan = PlanFor(asked);
  ASSERT_GT(plan.expected_s, kMaxUnaskedSeconds);
  const auto advice = [&](const CompareOptions& options) {
    return LongPlanAdvice(options, TestProbe(), 2, kSpent, plan);
  };
  EXPECT_THAT(advice(asked),
              Has(absl::StrCat("this takes about ", HumanSeconds(plan.expected_s), "; to start"),
                  ", or fewer --repeats, --samples"));
  EXPECT_THAT(advice(asked), Lacks("--workload"));
  EXPECT_EQ(advice(asked).find('\n'), std::string::npos);
  // The budget that it names is enough.
  const double seconds = SecondsAfter("add --time_budget ", advice(asked));
  EXPECT_TRUE(PlanWithin(asked, seconds).status.ok()) << advice(asked);
  // What psring has recorded may be replayed, and what is not given may be shortened.
  CompareOptions free;
  for (const auto& [model, workload] :
       {std::pair{"resnet50", "resnet50"}, {"gpt-mini", "gpt_mini"}, {"gpt2", "gpt2"}}) {
    free.training.model = model;
    EXPECT_THAT(advice(free), Has(absl::StrCat("instead of computing, --workload ", workload)));
  }
  free.training.workload = "resnet50";
  EXPECT_THAT(advice(free), Lacks("instead of computing"));
  EXPECT_TRUE(PlanWithin({}, kMaxUnaskedSeconds).status.ok());
}

}  // namespace
}  // namespace psring
