#include "experiments/summary/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/experiments/test_catalog.h"

namespace psring {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kBytes = 4 * 25'000'000.0;
const Wires kGigabit{.latency_s = 1e-4, .bytes_per_s = 0.125e9, .add_s_per_byte = 1e-10};

// A row on links of 1 Gbit/s with 32 samples per worker and step.
SummaryRow Row(const std::string& strategy, int workers, double step_ms, double spread = 0.001) {
  SummaryRow row{.run_id = "run", .configuration = TestConfiguration(strategy, workers)};
  row.measured_cost = true;
  row.rounds = 3;
  row.link = {.shaping = Shaping::kUserspace, .bits_per_s = 1e9};
  row.mean.step_ms = step_ms;
  row.mean.compute_ms = 100;
  row.mean.samples_per_s = 32e3 * workers / step_ms;
  for (const double factor : {1 - spread, 1.0, 1 + spread}) {
    row.round_samples_per_s.push_back(factor * row.mean.samples_per_s);
  }
  row.sample.bucket_elements = {25'000'000};
  return row;
}

std::vector<SummaryRow> RowsOfFour(double ring_ms, double server_ms, double spread = 0.001) {
  std::vector<SummaryRow> rows = {Row("single", 1, 100), Row("none", 4, 100), Row("ring", 4, ring_ms, spread),
                                  Row("ps-sync", 4, server_ms, spread)};
  rows[2].predicted_comm_ms = 1200;
  rows[3].predicted_comm_ms = 3200;
  return rows;
}

std::string English(const std::vector<SummaryRow>& rows) {
  return Verdict(rows, kGigabit, Language::kEnglish);
}

TEST(Verdict, RecommendsTheFastestAndSaysWhy) {
  const std::string text = English(RowsOfFour(1000, 2500));
  EXPECT_THAT(text, HasSubstr("Use ring: 2.50 ("));
  EXPECT_THAT(text, HasSubstr("times as fast as ps-sync with 4 workers on 1 Gbit/s links"));
  EXPECT_THAT(text, HasSubstr("because one server's link carries all workers' gradients"));
}

TEST(Verdict, NamesTheRateFromWhichDistributingHelps) {
  const std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  // 4 workers match one if the step takes 4 x 100 ms, so 300 ms may be exposed:
  // 2(N-1)a + 2(N-1)/N M/B + (N-1)/N M g = 300 ms, for B.
  const double rate = 8 * 1.5 * kBytes / (0.3 - 6 * 1e-4 - 0.75 * kBytes * 1e-10);
  const auto from = LeastUsefulRate(rows[2], rows[0], &rows[1], kGigabit);
  ASSERT_TRUE(from.has_value());
  EXPECT_NEAR(*from, rate, 2e-3 * rate);
  EXPECT_THAT(English(rows), HasSubstr("A single worker gives 320 samples/s, so distribute this model only "
                                       "on links of at least 4.2 Gbit/s (derived)."));
}

TEST(Verdict, CountsOnlyTheExposedPartOfAnAllReduce) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  const double all = *LeastUsefulRate(rows[2], rows[0], &rows[1], kGigabit);
  rows[2].mean.bucket_ready_ms = {40};  // 60 ms before the end of backward
  rows[2].mean.computed_ms = 100;
  const double exposed = *LeastUsefulRate(rows[2], rows[0], &rows[1], kGigabit);
  const double rate = 8 * 1.5 * kBytes / (0.36 - 6 * 1e-4 - 0.75 * kBytes * 1e-10);
  EXPECT_LT(exposed, all);
  EXPECT_NEAR(exposed, rate, 2e-3 * rate);
}

TEST(Verdict, NoRateSufficesIfLatencyIsTooLong) {
  const std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  Wires far = kGigabit;
  far.latency_s = 0.1;  // six times is more than 300 ms
  EXPECT_FALSE(LeastUsefulRate(rows[2], rows[0], &rows[1], far).has_value());
  EXPECT_THAT(Verdict(rows, far, Language::kEnglish), HasSubstr("do not distribute this model here"));
}

TEST(Verdict, SaysByHowMuchDistributingHelps) {
  EXPECT_THAT(English(RowsOfFour(200, 500)), HasSubstr("ring is 2.00 times as fast as a single worker (320"));
}

TEST(Verdict, NamesNoStrategyIfNoDifferenceIsShown) {
  const std::string uncertain = English(RowsOfFour(1000, 1010, 0.2));
  EXPECT_THAT(uncertain,
              HasSubstr("None of ring, ps-sync is shown to be faster with 4 workers on 1 Gbit/s links: "));
  EXPECT_THAT(uncertain, HasSubstr("too uncertain for 3 rounds"));
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.round_samples_per_s.resize(1);
  EXPECT_THAT(English(rows), HasSubstr("one round gives no interval"));
}

TEST(Verdict, RecommendsEqualStrategiesTogether) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows.push_back(Row("star", 4, 1001));
  const std::string text = English(rows);
  EXPECT_THAT(text, HasSubstr("Use ring or star: 2.50"));
  EXPECT_THAT(text, HasSubstr("No difference between ring and star is shown."));
}

TEST(Verdict, DoesNotClaimThatTheoryExplainsADifferenceThatItDoesNotPredict) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[3].predicted_comm_ms = 1190;
  EXPECT_THAT(English(rows), HasSubstr("theory, which excludes processor time, predicts no such difference"));
  EXPECT_THAT(English(rows), Not(HasSubstr("because")));
}

TEST(Verdict, ConcludesNothingAboutNetworksFromALoopback) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.link = {};
  EXPECT_THAT(English(rows), HasSubstr("programs and processor time on one machine, not networks"));
  EXPECT_THAT(English(rows), Not(HasSubstr("only on links")));
}

TEST(Verdict, NamesNoMachineIfTimesAreOfAVirtualClock) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) {
    row.link = {};
    row.configuration.training.clock = "virtual";
  }
  const std::string text = English(rows);
  EXPECT_THAT(text, HasSubstr("Use ring: 2.50"));
  EXPECT_THAT(text, HasSubstr("with 4 workers on the simulated network."));
  EXPECT_THAT(text, HasSubstr("Times are simulated."));
  EXPECT_THAT(text, Not(HasSubstr("machine")));
}

TEST(Verdict, NamesNoStrategyIfWorkersShareCoresAndNoLinkLimitsThem) {
  std::vector<SummaryRow> rows = RowsOfFour(110, 120);
  for (SummaryRow& row : rows) row.configuration.oversubscribed = row.configuration.workers > 1;
  EXPECT_THAT(English(rows), HasSubstr("No strategy is named"));
}

TEST(Verdict, ReportsAFasterAsynchronousStrategyAsAnotherKindOfTraining) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows.push_back(Row("ps-async", 4, 500));
  EXPECT_THAT(English(rows), HasSubstr("Use ring"));
  EXPECT_THAT(English(rows), HasSubstr("ps-async is 2.00 times as fast as ring, but it updates"));
}

TEST(Verdict, RecommendedAreTheStrategiesThatItNames) {
  EXPECT_EQ(Recommended(RowsOfFour(1000, 2500)), std::vector<std::string>{"ring"});
  EXPECT_EQ(Recommended(RowsOfFour(2500, 1000)), std::vector<std::string>{"ps-sync"});
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows.push_back(Row("star", 4, 1001));
  EXPECT_EQ(Recommended(rows), (std::vector<std::string>{"ring", "star"}));
  EXPECT_TRUE(Recommended(RowsOfFour(1000, 1000)).empty()) << "no difference is shown";
  EXPECT_TRUE(Recommended({Row("ring", 4, 1000)}).empty()) << "nothing to choose from";
}

TEST(Verdict, IsEmptyWithNothingToChooseFrom) {
  EXPECT_EQ(English({}), "");
  EXPECT_EQ(English({Row("single", 1, 100), Row("ring", 4, 1000), Row("ps-async", 4, 900)}), "");
}

TEST(Verdict, IsAlsoInChinese) {
  const std::string text = Verdict(RowsOfFour(1000, 2500), kGigabit, Language::kChinese);
  EXPECT_THAT(text, HasSubstr("请用 ring"));
  EXPECT_THAT(text, HasSubstr("4.2 Gbit/s"));
}

}  // namespace
}  // namespace psring
