#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experiments/design/estimate.h"
#include "experiments/design/plan.h"
#include "experiments/design/rates.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;

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

TEST(Rates, EveryStrategyGetsTheSameFactorsOfItsOwnRate) {
  CompareOptions options;
  options.lr_factors = {2, 0.5, 1};
  EXPECT_EQ(CountOfRates(options), 3);
  Configuration ring = TestConfiguration("ring", 4);
  ring.update.lr = 0.2;
  EXPECT_THAT(RatesToTry(options, ring), ElementsAre(0.1, 0.2, 0.4));
  Configuration async = TestConfiguration("ps-async", 4);
  async.update.lr = 0.02;
  EXPECT_THAT(RatesToTry(options, async), ElementsAre(0.01, 0.02, 0.04));
  options.lr_factors.clear();
  EXPECT_TRUE(RatesToTry(options, ring).empty());
  options.lrs = {0.3, 0.1};
  EXPECT_THAT(RatesToTry(options, ring), ElementsAre(0.1, 0.3));
}

TEST(Rates, TuningTrainsEveryStrategyWithEveryNumberOfWorkers) {
  CompareOptions options;
  options.lr_factors = {0.5, 1, 2};
  const Plan plan = PlanFor(options);
  std::vector<std::string> measured = Names(plan.cost);
  std::erase_if(measured, [](const std::string& name) { return absl::StartsWith(name, "none "); });
  EXPECT_THAT(Names(plan.accuracy), testing::UnorderedElementsAreArray(measured));
  EXPECT_EQ(TrainingsOfEach(options, plan), 4);
  // The time of the trials is planned.
  options.lr_factors.clear();
  EXPECT_LT(plan.accuracy.front().training.samples, PlanFor(options).accuracy.front().training.samples);
}

TEST(Rates, EachNumberOfWorkersGetsItsOwnBestRate) {
  std::vector<TriedRate> tried = {{"ring", 2, 0.1, 0.80, 0.5},
                                  {"ring", 2, 0.2, 0.85, 0.4},
                                  {"ring", 4, 0.1, 0.90, 0.3},
                                  {"ring", 4, 0.2, std::nullopt, 0}};
  ASSERT_TRUE(PickRates(tried).ok());
  Configuration two = TestConfiguration("ring", 2), four = TestConfiguration("ring", 4);
  UsePickedRate(tried, two);
  UsePickedRate(tried, four);
  EXPECT_EQ(two.training.lr, 0.2);
  EXPECT_EQ(two.update.lr, 0.2);
  EXPECT_THAT(two.tried_lrs, ElementsAre(0.1, 0.2));
  EXPECT_EQ(four.training.lr, 0.1) << "the other one diverged";
}

TEST(Rates, AreReadBackFromTheirFile) {
  std::vector<TriedRate> tried = {{"ps-ssp:2", 4, 0.05, 0.8125, 0.5, true},
                                  {"ps-ssp:2", 4, 1e12, std::nullopt, 0, false}};
  const auto read = RatesFromCsv(RatesCsv(tried)).value();
  ASSERT_EQ(read.size(), 2);
  const TriedRate& one = read[0];
  EXPECT_EQ(std::tuple(one.strategy, one.workers, one.lr, one.accuracy, one.picked),
            std::tuple("ps-ssp:2", 4, 0.05, 0.8125, true));
  EXPECT_FALSE(read[1].accuracy.has_value());
  EXPECT_FALSE(read[1].picked);
  const std::string header = RatesCsv({});
  for (const char* row : {"ring,x,0.1,,,true\n", "ring,2,0.1\n", "ring,2.5,0.1,,,true\n",
                          "ring,2,\"1,100\",,,true\n", "ring,2,0.1,,,yes\n", "ring,2,0.1,1,nan,true\n"}) {
    EXPECT_THAT(std::string(RatesFromCsv(header + row).status().message()), Has("line 2: ")) << row;
  }
  for (const std::string& text : {std::string(), std::string("a header\n"), header})
    EXPECT_FALSE(RatesFromCsv(text).ok()) << text;
}

// What a configuration of psring train --pp is, and how long it is expected to take.

constexpr int kManyCores = 64;

Configuration Of(const std::string& strategy, int workers, const TrainingOptions& training) {
  return MakeConfiguration(strategy, workers, training, TestProbe(), kManyCores).value();
}

TEST(PipelineConfiguration, WorkersAreRanksOfReplicas) {
  const Configuration ring = Of("ring", 8, {.batch = 16, .micro_batches = 4, .pp = 2});
  EXPECT_EQ(ring.workers, 8);
  EXPECT_EQ(ring.ranks(), 8);
  EXPECT_EQ(ring.replicas(), 4);
  EXPECT_EQ(ring.layout(), "dp4xpp2");
  EXPECT_EQ(ring.step_samples(), 64);
  // A strategy of one process has one replica.
  const Configuration single = Of("single", 2, {.pp = 2, .transport = "tcp"});
  EXPECT_EQ(single.workers, 2);
  EXPECT_EQ(single.ranks(), 2);
  EXPECT_EQ(single.replicas(), 1);
  EXPECT_EQ(single.training.transport, "tcp") << "its stages exchange activations";
  EXPECT_EQ(Of("single", 2, {.transport = "tcp"}).training.transport, "auto");
}

TEST(PipelineConfiguration, AServerHasTheReplicasOfItsStages) {
  const Configuration sync = Of("ps-sync", 8, {.pp = 2, .servers = 3});
  EXPECT_EQ(sync.servers(), 6);
  EXPECT_EQ(sync.name(), "ps-sync x 8 on 6 servers (dp4xpp2 1f1b)");
  const CommPattern pattern = PatternOf(sync, *SchemeOf(sync.strategy));
  EXPECT_EQ(pattern.workers, 4);
  EXPECT_EQ(pattern.servers, 3);
}

TEST(PipelineConfiguration, ServersOfAllStagesOnOneHostShareItsLink) {
  const auto speed = [](int workers, int pp, const std::string& placement) {
    Probe probe = TestProbe();
    probe.per_machine = 1;
    probe.link = Wires{.bytes_per_s = 1e6};  // slower than all else
    const TrainingOptions training{.batch = 128, .pp = pp, .server_placement = placement};
    return SamplesPerSecond(MakeConfiguration("ps-sync", workers, training, probe, kManyCores).value(), probe,
                            kManyCores);
  };
  EXPECT_NEAR(speed(4, 2, "rank0") / speed(2, 1, "rank0"), 1, .05);
  EXPECT_NEAR(speed(4, 2, "colocated") / speed(2, 1, "colocated"), 2, .1);
}

TEST(PipelineConfiguration, AGlobalBatchIsDividedAmongReplicasAndMicroBatches) {
  TrainingOptions training{.micro_batches = 4, .pp = 2};
  training.global_batch = 64;
  EXPECT_EQ(Of("ring", 4, training).training.batch, 8);
  CompareOptions options{.strategies = {"ring"}, .workers = {4}, .training = training};
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
  options.training.global_batch = 65;
  EXPECT_THAT(CheckBatches(options, 60000).message(), Has("use 64 or 72"));
  options.strategies = {"single"};
  options.workers = {2};
  options.training.global_batch = 64;
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
}

TEST(PipelineConfiguration, TheBubbleOfTheFormulaIsExpected) {
  EXPECT_EQ(BubbleOf({}), 0);
  EXPECT_DOUBLE_EQ(BubbleOf({.micro_batches = 1, .pp = 2}), .5);
  EXPECT_DOUBLE_EQ(BubbleOf({.micro_batches = 8, .pp = 4}), 3. / 11);
  const auto speed = [](int micro_batches, int cores) {
    Probe probe = TestProbe();
    probe.step_samples = 128;
    const Configuration configuration =
        MakeConfiguration("single", 4, {.batch = 128, .micro_batches = micro_batches, .pp = 4}, probe, cores)
            .value();
    return SamplesPerSecond(configuration, probe, cores);
  };
  EXPECT_NEAR(speed(64, kManyCores) / speed(1, kManyCores), (64. / 67) / (1. / 4), 1e-6);
  // On one core, ranks compute while others wait.
  EXPECT_NEAR(speed(64, 1) / speed(1, 1), 1, 1e-6);
}

TEST(PipelineConfiguration, ANoteGivesTheStepOfAReplica) {
  Plan plan;
  plan.cost = {Of("ring", 4, {.batch = 16, .micro_batches = 4, .pp = 2}), Of("ring", 4, {})};
  AddPipelineNotes(plan);
  EXPECT_EQ(plan.notes,
            std::vector<std::string>{
                "dp2xpp2: a replica's step is 4 x 16 samples (--micro_batches x --batch); without messages a "
                "worker would be idle in 20% of it (1f1b)"});
}

}  // namespace
}  // namespace psring
