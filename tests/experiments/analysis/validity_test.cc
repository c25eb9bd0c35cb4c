// The line on validity: which rows decide, and what it says about them.
#include <gtest/gtest.h>

#include "common/text/translate.h"
#include "experiments/analysis/verdict.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/has.h"

namespace psring {
namespace {

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
            "Not valid. Another psring (process 123) was running during ring x 4. Repeat the run on an idle "
            "machine.");
  EXPECT_THAT(ChineseLine(rows), Has("ring x 4 期间，另一个 psring（进程 123）也在运行。"));
  Disturb(rows[3], 50);
  EXPECT_THAT(Line(rows),
              Has("during ring x 4. Other programs used up to 50% of the processors during ps-sync x 4."));
}

TEST(Validity, DistinguishesDisturbedRowsThatTheVerdictUses) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows.push_back(TimedRow("ring", 2, 800));
  Disturb(rows[4], 45);
  rows[2].foreign_cpu_pct = 7;
  EXPECT_EQ(Line(rows),
            "The answer is valid, but other rows are not. For the rows that the answer uses, rounds: 3; "
            "other programs used at most 7% of the processors. Other programs used up to 45% of the "
            "processors during ring x 2.");
  EXPECT_EQ(State(rows), "limited");
  Disturb(rows[2], 50);
  EXPECT_EQ(
      Line(rows),
      "Not valid. The answer uses rows that are not valid. Other programs used up to 50% of the processors "
      "during ring x 4. Repeat the run on an idle machine. Other rows that are not valid: ring x 2.");
  EXPECT_EQ(State(rows), "invalid");
  for (SummaryRow& row : rows) Disturb(row, 60);
  EXPECT_THAT(Line(rows), Has("Other programs used up to 60% of the processors during single x 1, none x 4, "
                              "ring x 4, ps-sync x 4."));
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
            "Not valid. Other programs used up to 45% of the processors during every row. Repeat the run on "
            "an idle machine.");
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
