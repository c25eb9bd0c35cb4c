// Waiting, times of measured runs, targets, picked learning rates and virtual plans, with hand-written
// numbers.
#include "experiments/analysis/waiting.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/text/translate.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/table.h"
#include "experiments/analysis/verdict.h"
#include "experiments/design/launches.h"
#include "experiments/design/plan.h"
#include "experiments/design/rates.h"
#include "experiments/run_folder/measured_run.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

// A step with these times in ms.
StepRecord Step(int rank, int64_t step, int64_t begin, int64_t ready, int64_t over, bool dropped = false) {
  return {.rank = rank,
          .step = step,
          .samples = 128,
          .dropped = dropped,
          .begin_ns = begin * kMillisecond,
          .step_ms = static_cast<double>(over - begin),
          .compute_ms = static_cast<double>(ready - begin - 1),
          .exposed_comm_ms = static_cast<double>(over - ready),
          .buckets = {{.bucket = 0,
                       .ready_ns = ready * kMillisecond,
                       .begin_ns = ready * kMillisecond,
                       .end_ns = over * kMillisecond}}};
}

RunRecords RecordsOf(std::vector<std::vector<StepRecord>> steps) {
  RunRecords records;
  for (size_t rank = 0; rank < steps.size(); ++rank)
    records.ranks.push_back({.rank = static_cast<int>(rank), .bucket_elements = {10}});
  records.steps = std::move(steps);
  return records;
}

StrategyRow Strategy(const std::string& name) { return *FindStrategy(name); }

TEST(Waiting, SynchronousWorkersWaitForTheLastOne) {
  const RunRecords records = RecordsOf(
      {{Step(0, 0, 0, 10, 33), Step(0, 1, 33, 43, 66)}, {Step(1, 0, 0, 30, 33), Step(1, 1, 33, 63, 66)}});
  for (const char* name : {"ps-sync", "ring"}) {
    const auto waits = WaitsOf(Strategy(name), records);
    EXPECT_DOUBLE_EQ(waits[0][0].waited_ms, 20) << name;
    EXPECT_DOUBLE_EQ(waits[0][1].waited_ms, 20) << name;
    EXPECT_DOUBLE_EQ(waits[1][0].waited_ms, 0) << name;
    EXPECT_DOUBLE_EQ(waits[0][0].exchange_ms, 3) << name;
    EXPECT_DOUBLE_EQ(waits[1][1].exchange_ms, 3) << name;
  }
}

TEST(Waiting, AsynchronousWorkersDoNotWait) {
  const RunRecords records = RecordsOf({{Step(0, 0, 0, 10, 15)}, {Step(1, 0, 0, 30, 34)}});
  const auto waits = WaitsOf(Strategy("ps-async"), records);
  EXPECT_DOUBLE_EQ(waits[0][0].waited_ms, 0);
  EXPECT_DOUBLE_EQ(waits[0][0].exchange_ms, 5);
  EXPECT_DOUBLE_EQ(waits[1][0].exchange_ms, 4);
}

TEST(Waiting, WithABoundWorkersWaitForThatManyStepsBefore) {
  // ssp:1: worker 0's step 1 is answered after worker 1 has pushed its step 0, at 30 ms.
  const RunRecords records = RecordsOf(
      {{Step(0, 0, 0, 10, 12), Step(0, 1, 12, 22, 32)}, {Step(1, 0, 0, 30, 32), Step(1, 1, 32, 62, 64)}});
  const auto waits = WaitsOf(Strategy("ps-ssp:1"), records);
  EXPECT_DOUBLE_EQ(waits[0][0].waited_ms, 0);
  EXPECT_DOUBLE_EQ(waits[0][1].waited_ms, 8);
  EXPECT_DOUBLE_EQ(waits[0][1].exchange_ms, 2);
  EXPECT_DOUBLE_EQ(waits[1][1].waited_ms, 0);
}

TEST(Waiting, WithBackupWorkersOnlyAdmittedOnesAreWaitedFor) {
  const RunRecords records =
      RecordsOf({{Step(0, 0, 0, 10, 15)}, {Step(1, 0, 0, 12, 15)}, {Step(2, 0, 0, 30, 33, true)}});
  const auto waits = WaitsOf(Strategy("ps-backup:1"), records);
  EXPECT_DOUBLE_EQ(waits[0][0].waited_ms, 2);
  EXPECT_DOUBLE_EQ(waits[0][0].exchange_ms, 3);
  EXPECT_DOUBLE_EQ(waits[2][0].waited_ms, 0);
}

TEST(Waiting, StalenessOfRatesIsTheOthersSumOverTheOwn) {
  EXPECT_EQ(StalenessOfRates({1, 1, 1}), (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(StalenessOfRates({2, 1}), (std::vector<double>{.5, 2}));
}

TEST(Waiting, ComputesFiguresByWorker) {
  RunRecords records = RecordsOf({{Step(0, 0, 0, 10, 20), Step(0, 1, 20, 30, 40)}, {Step(1, 0, 0, 38, 40)}});
  records.ranks[0].pushes = 2;
  records.ranks[0].staleness_sum = 1;
  records.ranks[1].pushes = 1;
  records.ranks[1].staleness_sum = 2;
  records.ranks[1].staleness_max = 2;
  const auto figures = FiguresOf(TestConfiguration("ps-async", 2), records).value();
  ASSERT_EQ(figures.workers.size(), 2);
  EXPECT_EQ(figures.workers[0].steps, 2);
  EXPECT_DOUBLE_EQ(*figures.workers[0].staleness_mean, .5);
  EXPECT_DOUBLE_EQ(*figures.workers[0].staleness_theory, .5);
  EXPECT_DOUBLE_EQ(*figures.workers[1].staleness_theory, 2);
  EXPECT_EQ(figures.workers[1].staleness_max, 2);
  EXPECT_EQ(figures.steps, 1) << "three steps divided by two workers";
  EXPECT_DOUBLE_EQ(figures.workers[0].samples_per_s + figures.workers[1].samples_per_s,
                   figures.samples_per_s);
  EXPECT_DOUBLE_EQ(figures.workers[0].samples_per_s, 2 * 128 / .04);
  const auto mean = MeanWorkers({figures, figures});
  EXPECT_DOUBLE_EQ(mean[1].step_ms, 40);
  EXPECT_DOUBLE_EQ(*mean[1].staleness_mean, 2);
  RunFigures one_lost = figures;
  one_lost.workers.pop_back();
  EXPECT_DOUBLE_EQ(MeanWorkers({figures, one_lost})[1].step_ms, 40);
}

TEST(Waiting, ATimeThatIsNotANumberCountsAsNone) {
  StepRecord step;
  step.begin_ns = 5;
  step.step_ms = NAN;
  EXPECT_EQ(EndNs(step), 5);
  EXPECT_EQ(ReadyNs(step), 5);
}

TEST(Waiting, AddsSpeedsOfIndependentWorkers) {
  const auto figures =
      FiguresOf(TestConfiguration("none", 2), RecordsOf({{Step(0, 0, 0, 10, 10)}, {Step(1, 0, 0, 40, 40)}}));
  EXPECT_DOUBLE_EQ(figures->samples_per_s, 128 / .01 + 128 / .04);
}

TEST(Waiting, MeasuredTimesExcludeWaiting) {
  RunRecords records = RecordsOf(
      {{Step(0, 0, 0, 10, 33), Step(0, 1, 35, 45, 68)}, {Step(1, 0, 0, 30, 33), Step(1, 1, 35, 65, 68)}});
  const LaunchNote undisturbed;
  const auto times = TimesOf(Strategy("ps-sync"), undisturbed, records).value();
  EXPECT_EQ(times.workers[0].compute_ms, (std::vector<double>{9, 9}));
  EXPECT_EQ(times.workers[0].other_ms, (std::vector<double>{1, 3})) << "including the 2 ms between the steps";
  EXPECT_EQ(times.workers[0].exchange_ms, (std::vector<double>{3, 3}));
  EXPECT_EQ(times.workers[1].compute_ms, (std::vector<double>{29, 29}));

  // Of 29 ms, worker 1 slept 18, twice the 9 of its layers; 2 are other time.
  for (StepRecord& step : records.steps[1]) step.delay_ms = 18;
  const LaunchNote slowed{.trainer_flags = {"--straggler=1:3"}};
  const auto own = TimesOf(Strategy("ps-sync"), slowed, records).value();
  EXPECT_EQ(own.workers[1].compute_ms, (std::vector<double>{9, 9}));
  EXPECT_EQ(own.workers[1].other_ms, (std::vector<double>{3, 5}));
  records.steps[1][0].warmup = records.steps[1][1].warmup = true;
  EXPECT_FALSE(TimesOf(Strategy("ps-sync"), undisturbed, records).ok());
}

TEST(Waiting, FindingsStateTheCostsOfWaitingAndNotWaiting) {
  std::vector<SummaryRow> rows;
  for (const char* name : {"none", "ps-sync", "ps-async", "ps-backup:1"}) {
    SummaryRow& row = rows.emplace_back();
    row.configuration = TestConfiguration(name, 4);
    row.configuration.training.straggler = "1:3";
    row.mean.samples_per_s = std::string(name) == "ps-async" ? 2000 : 1000;
    row.mean.workers = {{.step_ms = 20, .wait_ms = 12}, {.step_ms = 20, .wait_ms = 0}};
    row.test_accuracy = .85;
  }
  rows[2].mean.staleness_mean = 3;
  for (WorkerFigures& worker : rows[2].mean.workers) {
    worker.staleness_mean = 3;
    worker.staleness_theory = 3.1;
  }
  rows[3].mean.dropped_share = .25;
  const std::vector<std::string> findings = WaitingFindings(rows);
  ASSERT_EQ(findings.size(), 2);
  EXPECT_THAT(findings[0], Has("worker 1 takes 3 times as long to compute", "waits 0 to 60% of its time"));
  EXPECT_THAT(findings[1], Has("ps-async reaches 2.00 times the samples/s of ps-sync", "25% of the gradients",
                               "3.00 (3.10)"));
  for (SummaryRow& row : rows) row.configuration.training.straggler = "none";
  EXPECT_TRUE(WaitingFindings(rows).empty()) << "no worker was disturbed";
}

TEST(Target, IsReachedAtTheFirstPoint) {
  const std::vector<CurvePoint> curve = {{.wall_s = 1, .test_accuracy = .5},
                                         {.wall_s = 2, .test_accuracy = .85},
                                         {.wall_s = 3, .test_accuracy = .8}};
  EXPECT_EQ(TimeToTarget(curve, .5), 1);
  EXPECT_EQ(TimeToTarget(curve, .85), 2);
  EXPECT_EQ(TimeToTarget(curve, .86), std::nullopt);
}

TEST(Target, IsEmptyWithANoteUnlessAllTrainingsReachIt) {
  ConfigurationRuns runs{.configuration = TestConfiguration("ring", 2)};
  runs.configuration.target_accuracy = .8;
  RunFigures reached{.samples_per_s = 1, .step_ms = 1, .test_accuracy = .9, .time_to_target_s = 4};
  RunFigures slower = reached;
  slower.time_to_target_s = 9;
  runs.accuracy = {reached, slower};
  SummaryRow row = Summarise("run", {runs}, std::nullopt).front();
  EXPECT_NEAR(*row.time_to_target_s, 6, 1e-12);
  EXPECT_LE(row.time_to_target_95.value().low, 6);
  EXPECT_THAT(Table({row}), Has("6.00"));
  slower.time_to_target_s.reset();
  runs.accuracy = {reached, slower};
  row = Summarise("run", {runs}, std::nullopt).front();
  EXPECT_EQ(row.time_to_target_s, std::nullopt);
  EXPECT_EQ(row.note, "1 of 2 trainings reached an accuracy of 0.8");
}

TEST(Rates, PicksTheBestValidationAccuracyForEachStrategy) {
  std::vector<TriedRate> tried = {{"ring", 4, .01, .8},
                                  {"ring", 4, .05, .9},
                                  {"ring", 4, .1},
                                  {"ps-async", 4, .01, .7},
                                  {"ps-async", 4, .05, .7}};
  ASSERT_TRUE(PickRates(tried).ok());
  EXPECT_EQ(DescribeRates(tried), "ring x 4 0.05, ps-async x 4 0.01") << "of equal ones the lower";
  Configuration configuration = TestConfiguration("ring", 2);
  UsePickedRate(tried, configuration);
  EXPECT_EQ(configuration.training.lr, .05) << "of another worker count";
  EXPECT_EQ(configuration.update.lr, .05);
  EXPECT_THAT(RatesCsv(tried), Has("ring,4,0.1,,,false\n")) << "it diverged";
  std::vector<TriedRate> diverged = {{"ring", 4, 10}};
  EXPECT_EQ(PickRates(diverged).message(), "ring x 4 diverged with every learning rate; use lower ones");
}

TEST(Launches, RoundTrip) {
  const Configuration configuration = TestConfiguration("ps-ssp:2", 4);
  const auto read = LaunchNoteFromJson(ToJson(NoteOf(configuration))).value();
  EXPECT_EQ(read.strategy, "ps-ssp:2");
  EXPECT_EQ(read.workers, 4);
  EXPECT_EQ(FlagOf(read, "--strategy", ""), "ps-ssp:2");
  EXPECT_EQ(FlagOf(read, "--straggler", "none"), "none");
  EXPECT_FALSE(LaunchNoteFromJson("[]").ok());
  EXPECT_EQ(ListLaunches("/no/such/run").status().code(), absl::StatusCode::kNotFound);
}

CompareOptions VirtualOptions() {
  CompareOptions options{.strategies = {"ps-async", "ring"}, .workers = {4, 200}};
  options.training.clock = "virtual";
  return options;
}

TEST(VirtualPlan, HasOneTrainingPerConfigurationAndRound) {
  const auto plan = MakeVirtualPlan(VirtualOptions(), TestProbe(), 2).value();
  EXPECT_TRUE(plan.simulated);
  EXPECT_TRUE(plan.accuracy.empty());
  ASSERT_EQ(plan.cost.size(), 5) << "single once, two strategies with 4 and 200 workers";
  for (const Configuration& configuration : plan.cost) {
    EXPECT_FALSE(configuration.oversubscribed);
    EXPECT_EQ(configuration.training.compute_ms, "13.5") << "as measured";
    EXPECT_EQ(configuration.training.samples, plan.cost.front().training.samples);
  }
}

TEST(VirtualPlan, RejectsStrategiesWithoutATimeModel) {
  CompareOptions options = VirtualOptions();
  EXPECT_TRUE(CheckCompareOptions(options).ok());
  options.workers = {257};
  EXPECT_FALSE(CheckCompareOptions(options).ok());
  options = VirtualOptions();
  options.strategies = {"star", "gloo"};
  EXPECT_THAT(MakeVirtualPlan(options, TestProbe(), 2).status().message(), Has("not gloo"));
  options.training.backend = "gloo";
  EXPECT_FALSE(CheckVirtualOptions(options).ok());
}

TEST(VirtualPlan, RowsStateWhatIsSimulatedAndMeasured) {
  SummaryRow row;
  row.configuration = TestConfiguration("ps-async", 4);
  row.configuration.training.clock = "virtual";
  row.test_accuracy = .9;
  for (const Cell& cell : Cells(row)) {
    const std::string column = cell.column;
    if (column == "basis") {
      EXPECT_EQ(std::get<std::string>(cell.value), "simulated");
    }
    if (column == "test_accuracy" || column == "loss") {
      EXPECT_EQ(cell.basis, Basis::kMeasured) << column;
    }
    if (column == "step_ms" || column == "samples_per_s" || column == "staleness_mean" ||
        column == "time_to_target_s") {
      EXPECT_EQ(cell.basis, Basis::kSimulated) << column;
    }
  }
}

// The line on validity: which rows decide, and what it says about them.

std::string Line(const std::vector<SummaryRow>& rows) { return ValidityOf(rows, /*cores=*/2)->Text(); }
std::string ChineseLine(const std::vector<SummaryRow>& rows) {
  return InLanguage(Language::kChinese, [&] { return Line(rows); });
}
std::string State(const std::vector<SummaryRow>& rows) { return ValidityOf(rows, 2)->state; }
void Disturb(SummaryRow& row, double percent) {
  row.valid = false;
  row.foreign_cpu_pct = percent;
}

TEST(Validity, NamesRoundsAndOtherProgramsOfAValidRun) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[1].foreign_cpu_pct = 4.4;
  EXPECT_EQ(Line(rows), "Valid. Rounds: 3. Other programs used at most 4% of the processors.");
  EXPECT_EQ(ChineseLine(rows), "有效。轮数：3。其他程序最多占用处理器的 4%。");
  EXPECT_EQ(State(rows), "valid");
  EXPECT_FALSE(ValidityOf({}, 2).has_value());
}

TEST(Validity, NamesTheRowsWhoseWorkersShareCores) {
  const std::vector<SummaryRow> rows = OversubscribedRowsOfFour(390, 1000);  // computing takes 200 ms
  EXPECT_EQ(Line(rows),
            "Valid with limits. Workers share 2 cores in none x 4, ring x 4, ps-sync x 4: their times do not "
            "apply to machines with one core per worker.");
  EXPECT_EQ(State(rows), "limited");
  EXPECT_THAT(Line({rows[1], rows[2]}), Has("Workers share 2 cores in every row: "));
  EXPECT_THAT(ValidityOf(rows, 1)->why, Has("Workers share 1 core in "));
  EXPECT_THAT(ChineseLine(rows), Has("ps-sync x 4 的 worker 共用 2 个核："));
}

TEST(Validity, SharedCoresDoNotMatterIfLinksLimitTheSteps) {
  const std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  EXPECT_EQ(Line(rows), "Valid. Rounds: 3. Other programs used at most 0% of the processors.");
}

TEST(Validity, NamesOneMachineWithoutLinksAndOneRound) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) {
    row.link = {};
    row.rounds = 1;
  }
  EXPECT_EQ(Line(rows),
            "Valid with limits. All ranks share one machine without links, so the times do not apply to a "
            "network. One round: no intervals.");
  EXPECT_THAT(Line({rows[0]}), Lacks("network")) << "one worker";
  for (SummaryRow& row : rows) row.configuration.on_machines = true;
  EXPECT_EQ(Line(rows), "Valid with limits. One round: no intervals.");
}

TEST(Validity, NamesAnotherPsring) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[2].valid = false;
  rows[2].other_psring = 123;
  EXPECT_EQ(Line(rows),
            "Not valid. Do not trust the times and speeds of ring x 4. Counted bytes and formulas are not "
            "affected. Another psring (process 123) was running. End these programs first, then run again.");
  EXPECT_THAT(ChineseLine(rows), Has("另一个 psring（进程 123）也在运行。"));
  Disturb(rows[3], 50);
  rows[3].other_psring = 124;
  EXPECT_THAT(Line(rows),
              Has("of ring x 4, ps-sync x 4.", "Other programs used 50% of the processors; the limit",
                  "psring (process 123, 124) was running."));
}

TEST(Validity, DistinguishesDisturbedRowsThatTheVerdictUses) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows.push_back(TimedRow("ring", 2, 800));
  Disturb(rows[4], 45);
  rows[2].foreign_cpu_pct = 7;
  EXPECT_EQ(
      Line(rows),
      "The answer is valid, but other rows are not. For the rows that the answer uses, rounds: 3; "
      "other programs used at most 7% of the processors. Do not trust the times and speeds of ring x 2. "
      "Counted bytes and formulas are not affected. Other programs used 45% of the processors; the limit "
      "is a third.");
  EXPECT_EQ(State(rows), "limited");
  Disturb(rows[2], 50);
  EXPECT_EQ(
      Line(rows),
      "Not valid. Do not trust the times and speeds of ring x 4, ring x 2. Counted bytes and formulas are "
      "not affected. Other programs used 45 to 50% of the processors; the limit is a third. End these "
      "programs first, then run again.");
  EXPECT_EQ(State(rows), "invalid");
  for (SummaryRow& row : rows) Disturb(row, 60);
  EXPECT_THAT(Line(rows), Has("the times and speeds of every row.", "used 60% of"));
}

TEST(Settings, AreOneLine) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) {
    row.configuration.model.name = "mlp";
    row.sample.parameters = 1'863'690;
  }
  EXPECT_EQ(SettingsText(rows, 4), "mlp, 7.45 MB, 1, 4 workers, 1 Gbit/s, valid, 3 rounds");
  EXPECT_THAT(SettingsText({rows[0]}, 4), Has("7.45 MB, 1 worker, 1 Gbit/s"));
  Disturb(rows[2], 50);
  EXPECT_THAT(SettingsText(rows, 4), Has(", not valid, "));
  EXPECT_EQ(SettingsText({}, 4), "");
}

TEST(Validity, WithoutAVerdictItIsAboutAllRows) {
  std::vector<SummaryRow> rows = {TimedRow("ring", 4, 1000)};
  Disturb(rows[0], 45);
  EXPECT_EQ(Line(rows),
            "Not valid. Do not trust the times and speeds of every row. Counted bytes and formulas are not "
            "affected. Other programs used 45% of the processors; the limit is a third. End these programs "
            "first, then run again.");
  rows[0].foreign_cpu_pct = 0;
  rows[0].mean.gpus_shared = 1;
  EXPECT_EQ(Line(rows),
            "Not valid. Ranks share a GPU in every row: the run shows that it works, not how fast it is.");
}

TEST(Validity, SaysWhatIsSimulated) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.configuration.training.clock = "virtual";
  EXPECT_EQ(Line(rows),
            "Simulated. Times come from a virtual clock; the training and its accuracy are real.");
  EXPECT_EQ(State(rows), "simulated");
  rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.configuration.training.time_scale = 10;
  EXPECT_EQ(Line(rows), "Simulated. Links and computing ran 10 times slower, and times are divided by 10.");
}

TEST(Validity, RecordsOfOneLaunchDoNotSayWhereItRan) {
  const auto validity = ValidityOf({TimedRow("ring", 4, 1000)}, std::nullopt);
  EXPECT_EQ(validity->state, std::string("limited"));
  EXPECT_THAT(validity->why, Has("Its records do not say where it ran"));
}

}  // namespace
}  // namespace psring
