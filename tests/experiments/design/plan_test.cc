#include "experiments/design/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/design/estimate.h"
#include "experiments/design/launches.h"
#include "experiments/run_folder/manifest.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::Not;

TEST(Plan, TheDefaultComparesServersAndRingWith2And4Workers) {
  const Plan plan = PlanFor({});
  EXPECT_THAT(Names(plan.cost),
              ElementsAre("single x 1", "none x 2", "ring x 2", "ps-sync x 2", "ps-async x 2", "none x 4",
                          "ring x 4", "ps-sync x 4", "ps-async x 4"));
  EXPECT_THAT(Names(plan.accuracy), ElementsAre("single x 1", "ring x 2", "ps-async x 2"));
}

TEST(Plan, ServerCountsApplyToServerStrategiesOnly) {
  CompareOptions options{.strategies = {"ring", "ps-sync"}, .workers = {2}, .servers = {1, 3}};
  EXPECT_THAT(Names(PlanFor(options).cost),
              ElementsAre("single x 1", "none x 2", "ring x 2", "ps-sync x 2", "ps-sync x 2 on 3 servers"));
  options.servers = {0};
  options.workers = {1, 4};
  options.training.server_placement = "colocated";
  EXPECT_THAT(Names(PlanFor(options).cost), ElementsAre("single x 1", "none x 1", "ring x 1", "ps-sync x 1",
                                                        "none x 4", "ring x 4", "ps-sync x 4 on 4 servers"));
}

TEST(Plan, TheDefaultFitsItsTimeBudgetOnTwoCores) {
  for (double step_s : {0.002, 0.0135, 0.05, 0.14}) {
    Probe probe = TestProbe();
    probe.step_s = step_s;
    const Plan plan = PlanFor({}, 2, probe);
    EXPECT_LE(plan.expected_s, 120) << step_s;
    EXPECT_GE(plan.rounds, step_s <= 0.05 ? kRoundsForNarrowIntervals : kFewestRounds) << step_s;
  }
}

TEST(Plan, CostLaunchesMeasureAFewStepsAndDoNotEvaluate) {
  for (const Configuration& configuration : PlanFor({}).cost) {
    EXPECT_FALSE(configuration.training.evaluate);
    EXPECT_GT(configuration.training.steps, 0);
    EXPECT_GT(configuration.training.warmup_steps, 0);
  }
}

TEST(Plan, AccuracyTrainingsSeeTheSameSamples) {
  std::set<int64_t> samples;
  for (const Configuration& configuration : PlanFor({}).accuracy) {
    samples.insert(configuration.training.samples);
    EXPECT_TRUE(configuration.training.evaluate);
    EXPECT_EQ(configuration.training.warmup_steps, 0);
  }
  EXPECT_EQ(samples.size(), 1);
  EXPECT_GT(*samples.begin(), 0);
}

TEST(Plan, OnlyTheAccuracyPartEvaluatesEveryFewSteps) {
  const Plan plan = PlanFor({.training = {.eval_every = 7}});
  for (const Configuration& configuration : plan.cost) {
    EXPECT_TRUE(ValidateTrainingOptions(configuration.training).ok()) << configuration.name();
    EXPECT_EQ(configuration.training.eval_every, 0);
  }
  ASSERT_FALSE(plan.accuracy.empty());
  for (const Configuration& configuration : plan.accuracy)
    EXPECT_EQ(configuration.training.eval_every, 7) << configuration.name();
}

TEST(Plan, EveryConfigurationHasTheTarget) {
  const Plan plan = PlanFor({.target_accuracy = .85});
  for (const auto* part : {&plan.cost, &plan.accuracy})
    EXPECT_THAT(*part, AllOf(Not(IsEmpty()), Each(Field(&Configuration::target_accuracy, .85))));
}

TEST(Plan, MoreWorkersThanCoresAreOversubscribed) {
  for (const Configuration& configuration : PlanFor({}, /*cores=*/2).cost)
    EXPECT_EQ(configuration.oversubscribed, configuration.workers > 2) << configuration.name();
}

TEST(Plan, AddsReferencesToAStrategyExceptToSingle) {
  const Plan plan = PlanFor({.strategies = {"ring"}, .workers = {2}});
  EXPECT_THAT(Names(plan.cost), ElementsAre("single x 1", "none x 2", "ring x 2"));
  EXPECT_THAT(Names(plan.accuracy), ElementsAre("single x 1", "ring x 2"));
  EXPECT_THAT(Names(PlanFor({.strategies = {"single"}, .workers = {1, 2, 4}}).cost),
              ElementsAre("single x 1"));
}

TEST(Plan, RepeatsAreRoundsAndTrainings) {
  const Plan plan = PlanFor({.strategies = {"ring"}, .workers = {2}, .repeats = 7});
  EXPECT_EQ(plan.rounds, 7);
  EXPECT_EQ(plan.accuracy_repeats, 7);
  EXPECT_FALSE(plan.rounds_fitted);
}

TEST(Plan, AnExplicitBudgetTrainsEveryWorkerCount) {
  const Plan plan = PlanFor({.strategies = {"ring"}, .workers = {1, 2}, .training = {.epochs = 2}});
  EXPECT_THAT(Names(plan.accuracy), ElementsAre("single x 1", "ring x 1", "ring x 2"));
  EXPECT_EQ(plan.accuracy.front().training.epochs, 2);
  EXPECT_FALSE(plan.accuracy_fitted);
}

TEST(Plan, NoEvalLeavesTheAccuracyPartOut) {
  EXPECT_TRUE(PlanFor({.training = {.evaluate = false}}).accuracy.empty());
}

TEST(Plan, ShortensTrainingsEquallyIfTimeIsShort) {
  Plan plan = PlanFor({});
  const int64_t planned = plan.accuracy.front().training.samples;
  EXPECT_FALSE(ShortenAccuracy(plan.accuracy_s, 0.5, plan));
  EXPECT_TRUE(ShortenAccuracy(plan.accuracy_s, 2, plan));
  for (const Configuration& configuration : plan.accuracy)
    EXPECT_NEAR(static_cast<double>(configuration.training.samples), planned / 2.0, 300);
  EXPECT_TRUE(ShortenAccuracy(-100, 1, plan));
  EXPECT_EQ(plan.accuracy.front().training.samples, 10 * 256);
}

TEST(Plan, CountsTheTokensOfATextAsItsSamples) {
  constexpr int kTokens = 64;
  Probe text = TestProbe();
  text.predictions = kTokens;
  text.samples *= kTokens;
  text.test_samples *= kTokens;
  const Plan pictures = PlanFor({}), texts = PlanFor({}, 2, text);
  EXPECT_EQ(texts.rounds, pictures.rounds);
  EXPECT_NEAR(texts.expected_s, pictures.expected_s, 1);
  ASSERT_EQ(texts.accuracy.size(), pictures.accuracy.size());
  const int64_t samples = pictures.accuracy.front().training.samples;
  EXPECT_NEAR(static_cast<double>(texts.accuracy.front().training.samples),
              static_cast<double>(kTokens * samples), 256.0 * kTokens);
  const Configuration& any = texts.cost.back();
  EXPECT_DOUBLE_EQ(SamplesPerSecond(any, text, 2),
                   kTokens * SamplesPerSecond(pictures.cost.back(), TestProbe(), 2));
  EXPECT_DOUBLE_EQ(EvaluationSeconds(any.training, text), EvaluationSeconds(any.training, TestProbe()));
}

TEST(Plan, KeepsTheNumberOfSamplesThatTheUserChose) {
  Plan plan = PlanFor({.training = {.samples = 100000}});
  EXPECT_FALSE(ShortenAccuracy(1, 1, plan));
}

TEST(Plan, NotesThatTheTimeBudgetIsExceeded) {
  const Plan plan = PlanFor({.repeats = 100});
  ASSERT_FALSE(plan.notes.empty());
  EXPECT_THAT(plan.notes.back(), Has("longer than --time_budget"));
}

TEST(Plan, AGlobalBatchIsDividedAmongTheWorkers) {
  CompareOptions options{.strategies = {"ring", "ps-sync"}, .workers = {1, 2, 4}};
  options.training.global_batch = 256;
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
  const Plan plan = PlanFor(options);
  for (const auto* part : {&plan.cost, &plan.accuracy}) {
    for (const Configuration& configuration : *part)
      EXPECT_EQ(configuration.training.batch * configuration.workers, 256) << configuration.name();
  }
  options.training.micro_batches = 4;
  for (const Configuration& configuration : PlanFor(options).cost)
    EXPECT_EQ(WorkerBatch(configuration.training) * configuration.workers, 256) << configuration.name();
}

TEST(Plan, AWorkersShareOfAGlobalBatchTakesLessTime) {
  Probe probe = TestProbe();
  probe.step_samples = 256;  // measured with one worker
  CompareOptions options{.strategies = {"none"}, .workers = {4}};
  options.training.global_batch = 256;
  const Plan plan = PlanFor(options, /*cores=*/64, probe);
  EXPECT_DOUBLE_EQ(ComputeSeconds(plan.cost.front().training, probe), probe.step_s);
  EXPECT_DOUBLE_EQ(ComputeSeconds(plan.cost.back().training, probe), probe.step_s / 4);
}

TEST(Plan, AStrategysNameIncludesItsNumber) {
  const Plan plan = PlanFor({.strategies = {"ps-ssp:2", "ps-ssp:8", "ps-backup:1"}, .workers = {4}});
  std::set<std::string> folders;
  for (const Configuration& configuration : plan.cost) folders.insert(configuration.folder());
  EXPECT_EQ(folders,
            (std::set<std::string>{"none-4", "ps-backup-1-4", "ps-ssp-2-4", "ps-ssp-8-4", "single-1"}));
  const Configuration& stale = plan.cost[2];
  EXPECT_EQ(stale.name(), "ps-ssp:2 x 4");
  EXPECT_EQ(stale.strategy.algorithm, "ssp:2");
  EXPECT_EQ(stale.training.strategy, "ps-ssp:2");
  EXPECT_EQ(stale.update.strategy, "ps-ssp");
}

TEST(Plan, ProcessesHaveEqualNumbersOfRanks) {
  CompareOptions options{.strategies = {"ring", "data-parallel"}, .workers = {1, 2, 4, 8}};
  options.training.ranks_per_process = 4;
  for (const Configuration& configuration : PlanFor(options).cost) {
    SCOPED_TRACE(configuration.name());
    const int workers = configuration.workers;
    const bool one = configuration.strategy.single_process;
    EXPECT_EQ(configuration.training.ranks_per_process, one ? 1 : std::min(workers, 4));
    EXPECT_EQ(configuration.processes(), workers == 8 && !one ? 2 : 1);
    EXPECT_EQ(configuration.ranks(), one ? 1 : workers);
  }
  options.workers = {4, 6};
  EXPECT_THAT(CheckCompareOptions(options).message(),
              Has("--workers 6 with --ranks_per_process 4: 6 is not a multiple of 4"));
}

TEST(Plan, ANoteSaysWhereHierarchicalIsARing) {
  const auto is_ring = [](const std::string& strategy, int each, const std::string& transport) {
    const CompareOptions options{.strategies = {strategy}, .workers = {4}};
    Probe probe = TestProbe();
    probe.per_machine = each;
    probe.transport = transport;
    const Plan plan = MakePlan(options, probe, /*cores=*/4).value();
    return std::ranges::any_of(plan.notes, [](const std::string& note) {
      return note.find("hierarchical is a ring") != std::string::npos;
    });
  };
  EXPECT_TRUE(is_ring("hierarchical", 1, "auto"));
  EXPECT_TRUE(is_ring("hierarchical", 2, "tcp"));
  EXPECT_FALSE(is_ring("hierarchical", 2, "auto"));
  EXPECT_FALSE(is_ring("hierarchical:2", 1, "auto"));
  EXPECT_FALSE(is_ring("ring", 1, "tcp"));
}

TEST(Plan, TheMachinesDetermineTheTransportOfStrategiesThatSend) {
  CompareOptions options{.strategies = {"ring", "ps-sync"}, .workers = {2}};
  options.training.transport = "tcp";
  for (const std::string transport : {"", "auto"}) {
    Probe probe = TestProbe();
    probe.transport = transport;
    for (const Configuration& configuration : PlanFor(options, 2, probe).cost)
      EXPECT_EQ(configuration.training.transport,
                transport.empty() && configuration.strategy.communicates() ? "tcp" : "auto")
          << configuration.name();
  }
}

TEST(Plan, ReplicasAreTheWorkersOfOneProcess) {
  const Plan plan = PlanFor({.strategies = {"data-parallel", "ring"}, .workers = {2, 3}});
  int found = 0;
  for (const Configuration& configuration : plan.cost) {
    const bool replicates = configuration.strategy.name == "data-parallel";
    found += replicates;
    EXPECT_EQ(configuration.training.replicas, replicates ? configuration.workers : 1);
    EXPECT_EQ(configuration.ranks(), replicates ? 1 : configuration.workers);
  }
  EXPECT_EQ(found, 2);
}

TEST(Plan, EveryRoundHasItsOwnOrder) {
  std::set<std::vector<int>> orders;
  for (int round = 0; round < 5; ++round) {
    std::vector<int> order = RoundOrder(13, 1, round);
    EXPECT_EQ(order, RoundOrder(13, 1, round));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (int i = 0; i < 13; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  EXPECT_EQ(orders.size(), 5);
}

TEST(Plan, RepeatsNoWarningOfTheTrainer) {
  Probe probe = TestProbe();
  for (StrategyUpdate& rule : probe.updates) rule.warnings = {"this will hurt"};
  const Plan plan = PlanFor({}, 2, probe);
  EXPECT_EQ(std::count(plan.notes.begin(), plan.notes.end(), "this will hurt"), 1);
}

TEST(Plan, TheDescriptionListsConfigurationsAndExpectedTime) {
  const Plan plan = PlanFor({});
  EXPECT_THAT(DescribePlan(plan), Has("ps-async x 4", "expected:  " + HumanSeconds(plan.expected_s)));
}

TEST(Plan, ParsesAndFormatsDurations) {
  for (const auto& [text, seconds] : {std::pair("90", 90), {"3m", 180}, {"1h30m", 5400}})
    EXPECT_EQ(*ParseSeconds(text), seconds) << text;
  for (const char* text : {"", "soon", "-3m", "0", "nan", "inf", "3 parsecs"})
    EXPECT_FALSE(ParseSeconds(text).ok()) << text;
  for (const auto& [seconds, text] : {std::pair(12.4, "12s"), {170, "2m50s"}, {3600, "1h00m"}})
    EXPECT_EQ(HumanSeconds(seconds), text);
}

TEST(HybridPlan, TheDefaultForAModelWithTablesHasHybridAndEvaluatesAtTheEnd) {
  CompareOptions options{.workers = {2}, .training = {.model = "dlrm-small"}};
  const Plan plan = PlanFor(options, /*cores=*/64);
  EXPECT_THAT(Names(plan.cost),
              ElementsAre("single x 1", "none x 2", "ring x 2", "ps-sync x 2", "ps-async x 2", "hybrid x 2"));
  EXPECT_THAT(plan.accuracy, Not(IsEmpty()));
  for (const Configuration& configuration : plan.accuracy) EXPECT_EQ(configuration.training.eval_every, 0);
  options.training.model = "mlp";
  EXPECT_GT(PlanFor(options, /*cores=*/64).accuracy.front().training.eval_every, 0);
}

// Plans of an earlier run.

CompareOptions Asked() { return {.strategies = {"ring", "ps-sync"}, .workers = {2}}; }

Plan Planned(const CompareOptions& options, double step_s) {
  Probe probe = TestProbe();
  probe.step_s = step_s;
  return PlanFor(options, 2, probe);
}

std::string ManifestOf(const Plan& plan, int rounds_done) {
  return ManifestJson({.verb = "compare", .plan = plan, .rounds_done = rounds_done, .wall_s = 1});
}

TEST(RecordedPlan, SetsRoundsStepsAndSamples) {
  const Plan first = Planned(Asked(), 0.05), second = Planned(Asked(), 0.002);
  ASSERT_NE(first.steps, second.steps);
  ASSERT_NE(first.accuracy.front().training.samples, second.accuracy.front().training.samples);
  const auto recorded = RecordedPlanFromJson(ManifestOf(first, first.rounds - 1)).value();
  Plan plan = second;
  ASSERT_TRUE(TakeRecordedPlan(recorded, Asked(), plan).ok());
  EXPECT_EQ(plan.rounds, first.rounds - 1);
  EXPECT_EQ(plan.steps, first.steps);
  EXPECT_FALSE(plan.rounds_fitted);
  EXPECT_FALSE(plan.accuracy_fitted);
  ASSERT_EQ(plan.cost.size(), first.cost.size());
  for (size_t i = 0; i < plan.cost.size(); ++i)
    EXPECT_EQ(TrainingArguments(plan.cost[i].training), TrainingArguments(first.cost[i].training));
  for (size_t i = 0; i < plan.accuracy.size(); ++i)
    EXPECT_EQ(TrainingArguments(plan.accuracy[i].training), TrainingArguments(first.accuracy[i].training));
}

TEST(RecordedPlan, KeepsValuesThatAreSet) {
  CompareOptions asked = Asked();
  asked.repeats = 7;
  asked.training.steps = 9;
  const auto recorded = RecordedPlanFromJson(ManifestOf(Planned(Asked(), 0.05), 3)).value();
  Plan plan = Planned(asked, 0.002);
  ASSERT_TRUE(TakeRecordedPlan(recorded, asked, plan).ok());
  EXPECT_EQ(plan.rounds, 7);
  EXPECT_EQ(plan.steps, 9);
  EXPECT_EQ(plan.cost.front().training.steps, 9);
}

TEST(RecordedPlan, AResumedRunHasAllPlannedRoundsAndTrainings) {
  Plan first = Planned(Asked(), 0.05);
  first.accuracy_repeats = 3;
  const auto recorded = RecordedPlanFromJson(ManifestJson({.verb = "compare",
                                                           .plan = first,
                                                           .rounds_done = 2,
                                                           .trainings_done = {"records/accuracy-1/ring-2"}}))
                            .value();
  EXPECT_EQ(recorded.rounds_done, 2);
  EXPECT_EQ(recorded.trainings_done, std::vector<std::string>{"records/accuracy-1/ring-2"});
  EXPECT_FALSE(recorded.all_done());
  Plan plan = Planned(Asked(), 0.002);
  ASSERT_TRUE(ContinueRecordedPlan(recorded, Asked(), plan).ok());
  EXPECT_EQ(plan.rounds, first.rounds);
  EXPECT_EQ(plan.accuracy_repeats, 3);
  ASSERT_EQ(plan.accuracy.size(), first.accuracy.size());
  EXPECT_EQ(TrainingArguments(plan.accuracy.back().training),
            TrainingArguments(first.accuracy.back().training));
  // A run whose time budget left the accuracy part out.
  first.accuracy.clear();
  const auto without =
      RecordedPlanFromJson(ManifestJson({.verb = "compare", .plan = first, .rounds_done = first.rounds}));
  ASSERT_TRUE(without.ok());
  EXPECT_TRUE(without->all_done());
  plan = Planned(Asked(), 0.002);
  ASSERT_TRUE(ContinueRecordedPlan(*without, Asked(), plan).ok());
  EXPECT_TRUE(plan.accuracy.empty());
}

TEST(RecordedPlan, NamesAMissingConfiguration) {
  const auto recorded = RecordedPlanFromJson(ManifestOf(Planned(Asked(), 0.05), 3)).value();
  CompareOptions asked = Asked();
  asked.workers = {3};
  Plan plan = Planned(asked, 0.05);
  EXPECT_THAT(TakeRecordedPlan(recorded, asked, plan).message(), Has("x 3"));
}

TEST(RecordedPlan, RejectsOtherTexts) {
  for (const char* text : {"", "[]", "{}", "{\"cost\":1,\"accuracy\":{}}", "{\"cost\":{},\"accuracy\":{}}",
                           "{\"cost\":{\"rounds_done\":2,\"configurations\":[{\"strategy\":1,"
                           "\"workers\":\"x\",\"trainer_flags\":[]}]},\"accuracy\":{}}"}) {
    EXPECT_FALSE(RecordedPlanFromJson(text).ok()) << text;
  }
}

// Paths need not be UTF-8, which JSON requires.
TEST(RecordedPlan, PathsThatAreNotUtf8AreReplaced) {
  const std::string path = "caf\xe9";
  const std::string manifest =
      ManifestJson({.verb = "compare", .command_line = {"psring", path}, .plan = Planned(Asked(), 0.1)});
  EXPECT_TRUE(nlohmann::json::accept(manifest));
  EXPECT_THAT(manifest, Has("caf\xef\xbf\xbd"));
  const std::string note = ToJson(LaunchNote{.strategy = "ring", .trainer_flags = {"--data_dir=" + path}});
  EXPECT_TRUE(nlohmann::json::accept(note)) << note;
}

}  // namespace
}  // namespace psring
