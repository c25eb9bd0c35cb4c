#include "experiments/design/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "experiments/design/estimate.h"
#include "experiments/design/plan_text.h"
#include "experiments/stats/statistics.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

std::vector<std::string> Names(const std::vector<Configuration>& configurations) {
  std::vector<std::string> names;
  for (const Configuration& configuration : configurations) names.push_back(configuration.name());
  return names;
}

Plan PlanFor(const CompareOptions& options, int cores = 2, const Probe& probe = TestProbe()) {
  absl::StatusOr<Plan> plan = MakePlan(options, probe, cores);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan();
}

std::string Refusal(const CompareOptions& options) {
  return std::string(CheckCompareOptions(options).message());
}

TEST(Plan, TheDefaultComparesServersAndRingWith2And4Workers) {
  const Plan plan = PlanFor({});
  EXPECT_EQ(Names(plan.cost),
            (std::vector<std::string>{"single x 1", "none x 2", "ring x 2", "ps-sync x 2", "ps-async x 2",
                                      "none x 4", "ring x 4", "ps-sync x 4", "ps-async x 4"}));
  EXPECT_EQ(Names(plan.accuracy), (std::vector<std::string>{"single x 1", "ring x 2", "ps-async x 2"}));
}

TEST(Plan, ServerCountsApplyToServerStrategiesOnly) {
  CompareOptions options{.strategies = {"ring", "ps-sync"}, .workers = {2}, .servers = {1, 3}};
  EXPECT_EQ(Names(PlanFor(options).cost),
            (std::vector<std::string>{"single x 1", "none x 2", "ring x 2", "ps-sync x 2",
                                      "ps-sync x 2 on 3 servers"}));
  options.servers = {0};
  options.workers = {1, 4};
  options.training.server_placement = "colocated";
  EXPECT_EQ(Names(PlanFor(options).cost),
            (std::vector<std::string>{"single x 1", "none x 1", "ring x 1", "ps-sync x 1", "none x 4",
                                      "ring x 4", "ps-sync x 4 on 4 servers"}));
}

TEST(Plan, EachServerWireIsARowOfServerStrategiesOnly) {
  CompareOptions options{
      .strategies = {"ring", "ps-sync"}, .workers = {2}, .servers = {2}, .server_wires = {"grpc", "stream"}};
  const Plan plan = PlanFor(options);
  EXPECT_EQ(Names(plan.cost),
            (std::vector<std::string>{"single x 1", "none x 2", "ring x 2", "ps-sync x 2 on 2 servers",
                                      "ps-sync x 2 on 2 servers (stream)"}));
  EXPECT_EQ(plan.cost.back().folder(), "ps-sync-2-on-2-stream");
  EXPECT_EQ(plan.cost.back().training.server_wire, "stream");
  options = {.strategies = {"ring"}, .workers = {2}, .server_wires = {"stream"}};
  EXPECT_THAT(Refusal(options), Has("--server_wire stream is for parameter-server strategies"));
}

TEST(Plan, FlagsApplyOnlyToStrategiesThatSupportThem) {
  CompareOptions options{.strategies = {"ring", "ps-sync", "ps-async"}, .workers = {2}};
  options.training.wire = "bfloat16";
  options.training.staleness_lr = "inverse";
  EXPECT_EQ(Refusal(options), "");
  for (const Configuration& configuration : PlanFor(options).cost) {
    const bool sends = configuration.strategy.communicates();
    EXPECT_EQ(configuration.training.wire, sends ? "bfloat16" : "float32") << configuration.name();
    EXPECT_EQ(configuration.training.staleness_lr,
              configuration.strategy.name == "ps-async" ? "inverse" : "none");
  }
}

TEST(Plan, RejectsFlagsThatNoStrategySupports) {
  CompareOptions ring{.strategies = {"ring"}, .workers = {2}, .servers = {2}};
  EXPECT_THAT(Refusal(ring), Has("--servers is for"));
  ring.servers = {0};
  ring.training.on_worker_loss = "continue";
  EXPECT_THAT(Refusal(ring),
              testing::StartsWith("--on_worker_loss continue is for parameter-server strategies"));
  ring.strategies = {"ring", "ps-sync"};
  EXPECT_EQ(Refusal(ring), "");
  for (const Configuration& configuration : PlanFor(ring).cost)
    EXPECT_EQ(configuration.training.on_worker_loss,
              configuration.strategy.name == "ps-sync" ? "continue" : "");
  // Each strategy by itself: of several servers with backup workers all must stop.
  ring.servers = {1, 2};
  EXPECT_EQ(Refusal(ring), "");
  ring.strategies = {"ps-sync", "ps-backup:1"};
  ring.workers = {3};
  EXPECT_THAT(Refusal(ring), Has("several servers of ps-backup"));
  ring.servers = {0};
  ring.workers = {2};
  ring.strategies = {"ring"};
  ring.training.on_worker_loss.clear();
  ring.training.wire = "float16";
  EXPECT_EQ(Refusal(ring), "");
  ring.strategies = {"single", "data-parallel"};
  EXPECT_THAT(Refusal(ring), Has("--wire sets"));
  CompareOptions sync{.strategies = {"ps-sync"}, .workers = {2}};
  sync.training.staleness_lr = "inverse";
  EXPECT_THAT(Refusal(sync), Has("--staleness_lr is for"));
  CompareOptions all{.workers = {2}};  // ps-async is among the defaults
  all.training.clip_norm = 1;
  EXPECT_THAT(Refusal(all), Has("omit it or ps-async"));
  all.strategies = {"ring", "ps-sync"};
  EXPECT_EQ(Refusal(all), "");
  const Plan plan = PlanFor(all);
  EXPECT_TRUE(std::any_of(plan.notes.begin(), plan.notes.end(), [](const std::string& note) {
    return note.find("needs the entire gradient") != std::string::npos;
  }));
  CompareOptions colocated{.strategies = {"ps-sync"}, .workers = {2}, .servers = {2}};
  colocated.training.server_placement = "colocated";
  EXPECT_THAT(Refusal(colocated), Has("omit --servers"));
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
  CompareOptions options;
  options.training.eval_every = 7;
  const Plan plan = PlanFor(options);
  for (const Configuration& configuration : plan.cost) {
    EXPECT_TRUE(ValidateTrainingOptions(configuration.training).ok()) << configuration.name();
    EXPECT_EQ(configuration.training.eval_every, 0);
  }
  ASSERT_FALSE(plan.accuracy.empty());
  for (const Configuration& configuration : plan.accuracy)
    EXPECT_EQ(configuration.training.eval_every, 7) << configuration.name();
}

TEST(Plan, EveryConfigurationHasTheTarget) {
  CompareOptions options;
  options.target_accuracy = .85;
  const Plan plan = PlanFor(options);
  for (const auto* part : {&plan.cost, &plan.accuracy}) {
    EXPECT_FALSE(part->empty());
    for (const Configuration& configuration : *part) EXPECT_EQ(configuration.target_accuracy, .85);
  }
}

TEST(Plan, MoreWorkersThanCoresAreOversubscribed) {
  for (const Configuration& configuration : PlanFor({}, /*cores=*/2).cost)
    EXPECT_EQ(configuration.oversubscribed, configuration.workers > 2) << configuration.name();
}

TEST(Plan, AddsReferencesToAStrategy) {
  const Plan plan = PlanFor({.strategies = {"ring"}, .workers = {2}});
  EXPECT_EQ(Names(plan.cost), (std::vector<std::string>{"single x 1", "none x 2", "ring x 2"}));
  EXPECT_EQ(Names(plan.accuracy), (std::vector<std::string>{"single x 1", "ring x 2"}));
}

TEST(Plan, SingleAloneNeedsNoReference) {
  const Plan plan = PlanFor({.strategies = {"single"}, .workers = {1, 2, 4}});
  EXPECT_EQ(Names(plan.cost), (std::vector<std::string>{"single x 1"}));
}

TEST(Plan, RepeatsAreRoundsAndTrainings) {
  const Plan plan = PlanFor({.strategies = {"ring"}, .workers = {2}, .repeats = 7});
  EXPECT_EQ(plan.rounds, 7);
  EXPECT_EQ(plan.accuracy_repeats, 7);
  EXPECT_FALSE(plan.rounds_fitted);
}

TEST(Plan, AnExplicitBudgetTrainsEveryWorkerCount) {
  CompareOptions options{.strategies = {"ring"}, .workers = {1, 2}};
  options.training.epochs = 2;
  const Plan plan = PlanFor(options);
  EXPECT_EQ(Names(plan.accuracy), (std::vector<std::string>{"single x 1", "ring x 1", "ring x 2"}));
  EXPECT_EQ(plan.accuracy.front().training.epochs, 2);
  EXPECT_FALSE(plan.accuracy_fitted);
}

TEST(Plan, NoEvalLeavesTheAccuracyPartOut) {
  CompareOptions options;
  options.training.evaluate = false;
  EXPECT_TRUE(PlanFor(options).accuracy.empty());
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
  CompareOptions options;
  options.training.samples = 100000;
  Plan plan = PlanFor(options);
  EXPECT_FALSE(ShortenAccuracy(1, 1, plan));
}

TEST(Plan, NotesThatTheTimeBudgetIsExceeded) {
  const Plan plan = PlanFor({.repeats = 100});
  ASSERT_FALSE(plan.notes.empty());
  EXPECT_THAT(plan.notes.back(), Has("longer than --time_budget"));
}

TEST(Plan, RejectsAGlobalBatchLargerThanTheData) {
  CompareOptions options{.workers = {1, 4}};
  options.training.batch = 20000;
  EXPECT_EQ(CheckBatches(options, 60000).message(),
            "--batch 20000 times 4 workers exceeds the 60000 samples of the data");
  EXPECT_TRUE(CheckBatches(options, 80000).ok());
  options.strategies = {"single"};  // one process, whatever --workers says
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
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

TEST(Plan, RejectsAGlobalBatchThatDoesNotDivide) {
  CompareOptions options{.strategies = {"ring"}, .workers = {2, 3}};
  options.training.global_batch = 128;
  EXPECT_EQ(
      CheckBatches(options, 60000).message(),
      "--global_batch 128 does not divide into 3 equal batches for 3 workers; use 126 or 129, or omit 3 "
      "from --workers");
  options.workers = {4};
  options.training.global_batch = 3;
  EXPECT_THAT(CheckBatches(options, 60000).message(), Has("use 4, or omit 4"));
  options.training.global_batch = 80000;
  EXPECT_EQ(CheckBatches(options, 60000).message(),
            "--global_batch 80000 exceeds the 60000 samples of the data");
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

TEST(Plan, SuggestsTheNearestName) {
  EXPECT_THAT(Refusal({.strategies = {"rign"}}),
              testing::StartsWith(
                  "unknown strategy 'rign'; did you mean 'ring'? Use one of none, single, data-parallel"));
  CompareOptions model;
  model.training.model = "mpl";
  EXPECT_THAT(Refusal(model), testing::StartsWith("unknown model 'mpl'; did you mean 'mlp'? Use one of "));
  EXPECT_THAT(
      Refusal({.strategies = {"zzzzzz"}}),
      testing::StartsWith("unknown strategy 'zzzzzz'; use one of none, single, data-parallel, star, ring, "));
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

TEST(Plan, RejectsAnInvalidNumber) {
  EXPECT_EQ(Refusal({.strategies = {"ps-ssp"}}),
            "strategy 'ps-ssp': ps-ssp:K needs a whole number from 1 (K: the most steps that a worker may be "
            "ahead), as in ps-ssp:1");
  EXPECT_EQ(Refusal({.strategies = {"ring:2"}}), "strategy 'ring:2': ring takes no number");
  EXPECT_EQ(Refusal({.strategies = {"ps-backup:2"}, .workers = {2, 4}}),
            "ps-backup:2 with 2 workers: at most 1 can be spare; omit 2 from --workers, or use a smaller B");
  EXPECT_EQ(Refusal({.strategies = {"ps-backup:2", "ps-ssp:3"}, .workers = {3, 4}}), "");
}

TEST(Plan, WorkerCountsMustBeFrom1To64) {
  for (int count : {0, -1, 65}) EXPECT_FALSE(Refusal({.workers = {count}}).empty()) << count;
  EXPECT_TRUE(Refusal({.workers = {1, 64}}).empty());
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
  EXPECT_THAT(Refusal(options), Has("--workers 6 with --ranks_per_process 4: 6 is not a multiple of 4"));
}

TEST(Plan, TheMachinesDetermineTheTransportOfStrategiesThatSend) {
  CompareOptions options{.strategies = {"ring", "ps-sync"}, .workers = {2}};
  options.training.transport = "tcp";
  for (const std::string transport : {"", "auto"}) {
    Probe probe = TestProbe();
    probe.transport = transport;
    for (const Configuration& configuration : PlanFor(options, 2, probe).cost) {
      EXPECT_EQ(configuration.training.transport,
                transport.empty() && configuration.strategy.communicates() ? "tcp" : "auto")
          << configuration.name();
    }
  }
}

TEST(Plan, LocalAggregationIsForPsSyncWithSeveralWorkersOnAMachine) {
  CompareOptions options{.strategies = {"ring", "ps-sync", "ps-async"}, .workers = {1, 2, 4}};
  options.training.local_aggregation = true;
  EXPECT_EQ(Refusal(options), "");
  for (const int per_machine : {0, 2}) {  // one machine, and machines of two
    Probe probe = TestProbe();
    probe.per_machine = per_machine;
    for (const Configuration& configuration : PlanFor(options, 2, probe).cost) {
      SCOPED_TRACE(configuration.name());
      const bool adds = configuration.strategy.name == "ps-sync" && configuration.workers > 1;
      EXPECT_EQ(configuration.training.local_aggregation, adds);
      EXPECT_EQ(configuration.workers_per_push(), !adds              ? 1
                                                  : per_machine == 0 ? configuration.workers
                                                                     : per_machine);
      const CommPattern pattern = PatternOf(configuration, Scheme::kServerSync);
      EXPECT_EQ(pattern.workers * pattern.per_machine, configuration.workers);
      EXPECT_EQ(pattern.per_machine, configuration.workers_per_push());
    }
  }
  options.strategies = {"ring", "ps-async"};
  EXPECT_THAT(Refusal(options), Has("--local_aggregation is for ps-sync"));
  options.strategies = {"ring"};
  EXPECT_THAT(Refusal(options), Has("--local_aggregation is for parameter-server strategies"));
  options.strategies = {"ps-sync"};
  options.workers = {1};
  EXPECT_THAT(Refusal(options), Has("use more --workers, or omit it"));
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

TEST(Plan, RejectsCountingEverySampleWhenGradientsAreDropped) {
  CompareOptions options{.strategies = {"ring", "ps-backup:1"}, .workers = {4}};
  options.training.drop_last = "false";
  EXPECT_EQ(Refusal(options),
            "--drop_last false counts every sample once, but ps-backup:1 drops gradients; omit one of them");
  options.strategies = {"ring"};
  EXPECT_EQ(Refusal(options), "");
}

TEST(Plan, MicroBatchesNeedStrategySingle) {
  CompareOptions options{.strategies = {"single", "ring"}};
  options.training.reference_workers = 2;
  EXPECT_FALSE(Refusal(options).empty());
  options.strategies = {};
  EXPECT_FALSE(Refusal(options).empty());
  options.strategies = {"single"};
  EXPECT_TRUE(Refusal(options).empty());
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
  EXPECT_EQ(*ParseSeconds("90"), 90);
  EXPECT_EQ(*ParseSeconds("3m"), 180);
  EXPECT_EQ(*ParseSeconds("1h30m"), 5400);
  for (const char* text : {"", "soon", "-3m", "0", "nan", "inf", "3 parsecs"})
    EXPECT_FALSE(ParseSeconds(text).ok()) << text;
  EXPECT_EQ(HumanSeconds(12.4), "12s");
  EXPECT_EQ(HumanSeconds(170), "2m50s");
  EXPECT_EQ(HumanSeconds(3600), "1h00m");
}

TEST(Plan, UsesAllGpusByDefault) {
  using Counts = std::vector<int>;
  TrainingOptions training;
  for (const int gpus : {0, 1, 4}) EXPECT_EQ(DefaultWorkers(training, gpus), (Counts{2, 4})) << gpus;
  EXPECT_EQ(DefaultWorkers(training, 2), (Counts{2}));
  EXPECT_EQ(DefaultWorkers(training, 6), (Counts{2, 4, 6}));
  EXPECT_EQ(DefaultWorkers(training, 8), (Counts{2, 4, 8}));
  training.oversubscribe = true;
  EXPECT_EQ(DefaultWorkers(training, 2), (Counts{2, 4}));
  EXPECT_EQ(DefaultWorkers({.device = "cpu"}, 8), (Counts{2, 4}));
  EXPECT_EQ(DefaultWorkers({.device = "cuda:1"}, 8), (Counts{2, 4}));
  EXPECT_EQ(DefaultWorkers({.clock = "virtual"}, 8), (Counts{2, 4}));
}

TEST(Plan, AllConfigurationsUseOneKindOfDevice) {
  TrainingOptions training;
  EXPECT_EQ(DeviceForAll(training, {1, 2, 4}, 0), "auto") << "which is the CPU";
  EXPECT_EQ(DeviceForAll(training, {1, 2, 4}, 1), "cpu");
  EXPECT_EQ(DeviceForAll(training, {1, 2, 4}, 3), "cpu");
  EXPECT_EQ(DeviceForAll(training, {1, 2, 4}, 4), "auto");
  EXPECT_EQ(DeviceForAll(training, {1}, 1), "auto");
  training.oversubscribe = true;
  EXPECT_EQ(DeviceForAll(training, {1, 2, 4}, 1), "auto");
  training = {.device = "cuda"};
  EXPECT_EQ(DeviceForAll(training, {4}, 1), "cuda") << "the trainer says that it must be shared";
}

Plan PlanOfTables(const CompareOptions& options) { return *MakePlan(options, TestProbe(), /*cores=*/64); }

std::vector<std::string> ConfigurationsOf(const std::vector<Configuration>& configurations) {
  std::vector<std::string> names;
  for (const Configuration& configuration : configurations) names.push_back(configuration.name());
  return names;
}

std::string RefusalOf(const CompareOptions& options) {
  return std::string(CheckCompareOptions(options).message());
}

TEST(HybridPlan, TheDefaultForAModelWithTablesHasHybridAndEvaluatesAtTheEnd) {
  CompareOptions options{.workers = {2}};
  options.training.model = "dlrm-small";
  const Plan plan = PlanOfTables(options);
  EXPECT_EQ(ConfigurationsOf(plan.cost),
            (std::vector<std::string>{"single x 1", "none x 2", "ring x 2", "ps-sync x 2", "ps-async x 2",
                                      "hybrid x 2"}));
  ASSERT_FALSE(plan.accuracy.empty());
  for (const Configuration& configuration : plan.accuracy) EXPECT_EQ(configuration.training.eval_every, 0);
  options.training.model = "mlp";
  EXPECT_GT(PlanOfTables(options).accuracy.front().training.eval_every, 0);
}

TEST(HybridPlan, HybridHasTheFlagsOfBothOfItsParts) {
  CompareOptions options{.strategies = {"ring", "hybrid"}, .workers = {2}, .servers = {1, 2}};
  options.training.model = "dlrm-small";
  options.training.backend = "gloo";
  EXPECT_EQ(RefusalOf(options), "");
  const Plan plan = PlanOfTables(options);
  EXPECT_EQ(ConfigurationsOf(plan.cost), (std::vector<std::string>{"single x 1", "none x 2", "ring x 2",
                                                                   "hybrid x 2", "hybrid x 2 on 2 servers"}));
  EXPECT_EQ(plan.cost.back().backend(), "gloo");
  options.training.backend.clear();
  options.training.ps_schedule = "serial";
  EXPECT_EQ(
      RefusalOf(options),
      "--ps_schedule serial is for servers that have all parameters (such as ps-sync); name one, or omit "
      "the flag");
  options.strategies = {"ps-sync", "hybrid"};
  options.server_wires = {"stream"};
  EXPECT_EQ(RefusalOf(options), "");
  for (const Configuration& configuration : PlanOfTables(options).cost) {
    const bool has_parameters = configuration.strategy.name == "ps-sync";
    EXPECT_EQ(configuration.training.ps_schedule, has_parameters ? "serial" : "pipelined");
    EXPECT_EQ(configuration.training.server_wire, has_parameters ? "stream" : "grpc");
  }
  options = {.strategies = {"ring", "hybrid"}, .workers = {2}};
  options.training.local_aggregation = true;
  EXPECT_NE(RefusalOf(options).find("--local_aggregation is for ps-sync"), std::string::npos);
  EXPECT_EQ(CheckVirtualStrategy(*FindStrategy("hybrid"), {.clock = "virtual"}).message(),
            "--clock virtual has no model of the rows of tables; omit hybrid");
}

}  // namespace

}  // namespace psring
