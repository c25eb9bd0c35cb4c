// From which rate distributing helps. Every rate is computed again by hand: 4 workers expose
// 2(N-1)a + 2(N-1)/N M/B + (N-1)/N M g, for B.
#include <gtest/gtest.h>

#include "common/text/translate.h"
#include "experiments/analysis/verdict.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/has.h"

namespace psring {
namespace {

double RingRate(double allowed_s) {
  return 8 * 1.5 * kGradientBytes / (allowed_s - 6 * 1e-4 - 0.75 * kGradientBytes * 1e-10);
}

std::optional<UsefulRate> RateOf(const std::vector<SummaryRow>& rows, const Wires& wires = kGigabitWires) {
  return LeastUsefulRate(rows[2], rows[0], ComputingRow(rows, rows[2], rows[0]), wires);
}

std::string Sentence(const std::vector<SummaryRow>& rows) {
  return WorthDistributing(rows, rows[2], rows[0], kGigabitWires).text;
}
std::string ChineseSentence(const std::vector<SummaryRow>& rows) {
  return InLanguage(Language::kChinese, [&] { return Sentence(rows); });
}

TEST(UsefulRate, IsThatAtWhichTheWorkersMatchOneProcess) {
  const std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  // 4 workers match one if the step takes 4 x 100 ms, so 300 ms may be exposed.
  const auto from = RateOf(rows).value();
  EXPECT_NEAR(from.bits_per_s, RingRate(0.3), 2e-3 * RingRate(0.3));
  EXPECT_EQ(from.low, from.bits_per_s) << "single has no interval";
  EXPECT_EQ(from.high, from.bits_per_s);
  EXPECT_EQ(Sentence(rows), "from 4.2 Gbit/s per link (derived)");
  EXPECT_EQ(ChineseSentence(rows), "每条链路达到 4.2 Gbit/s 起（推导）");
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], kGigabitWires).rate, "4.2gbit");
}

TEST(UsefulRate, CountsOnlyTheExposedPartOfAnAllReduce) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[2].mean.bucket_ready_ms = {40};  // 60 ms before the end of backward
  rows[2].mean.computed_ms = 100;
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.36), 2e-3 * RingRate(0.36));
}

TEST(UsefulRate, DoesNotUseTheComputingOfOversubscribedWorkers) {
  std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  EXPECT_EQ(&ComputingRow(rows, rows[2], rows[0]), &rows.back()) << "none with 2 workers";
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.3), 2e-3 * RingRate(0.3));
  EXPECT_EQ(Sentence(rows), "from 4.2 Gbit/s per link, with one core per worker (derived)");
  EXPECT_EQ(ChineseSentence(rows), "每条链路达到 4.2 Gbit/s 起，每个 worker 各有一核（推导）");
  // Backward, too, takes half the time: its last 120 ms are 60 ms.
  rows[2].mean.bucket_ready_ms = {80};
  rows[2].mean.computed_ms = 200;
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.36), 2e-3 * RingRate(0.36));
}

TEST(UsefulRate, UsesTheComputingOfOneProcessIfAllOthersWereOversubscribed) {
  std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  rows.back().configuration.oversubscribed = true;
  EXPECT_EQ(&ComputingRow(rows, rows[2], rows[0]), &rows[0]);
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.3), 2e-3 * RingRate(0.3));
}

TEST(UsefulRate, WithAFixedGlobalBatchAWorkerComputesItsShare) {
  std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  // 32 samples a step in all: one process takes 100 ms, a worker of two 50 ms, and one of four 25 ms.
  for (SummaryRow& row : rows) row.mean.samples_per_s = 32e3 / row.mean.step_ms;
  rows.back() = TimedRow("none", 2, 50);
  rows.back().mean.samples_per_s = 32e3 / 50;
  EXPECT_NEAR(RateOf(rows)->bits_per_s, RingRate(0.075), 2e-3 * RingRate(0.075));
}

TEST(UsefulRate, IsARangeIfTheIntervalOfOneProcessIsWide) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[0].samples_per_s_95 = Interval{250, 400};  // 512 and 320 ms for the 128 samples of a step
  const auto from = RateOf(rows);
  EXPECT_NEAR(from->low, RingRate(0.412), 2e-3 * RingRate(0.412));
  EXPECT_NEAR(*from->high, RingRate(0.22), 2e-3 * RingRate(0.22));
  EXPECT_EQ(Sentence(rows), "from 5.7 Gbit/s per link (derived; between 2.9 and 5.7 it is undecided)");
  EXPECT_EQ(ChineseSentence(rows), "每条链路达到 5.7 Gbit/s 起（推导；在 2.9 与 5.7 之间无法确定）");
  rows[0].samples_per_s_95 = Interval{318, 322};
  EXPECT_EQ(Sentence(rows), "from 4.2 Gbit/s per link (derived)") << "narrow";
}

TEST(UsefulRate, TheRangeBeginsAboveTheRateThatWasMeasured) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.link.bits_per_s = 3.5e9;
  rows[0].samples_per_s_95 = Interval{250, 400};
  const Wires wires{.latency_s = 1e-4, .bytes_per_s = 3.5e9 / 8, .add_s_per_byte = 1e-10};
  EXPECT_THAT(WorthDistributing(rows, rows[2], rows[0], wires).text, Has("between 3.5 and 5.7"));
  for (SummaryRow& row : rows) row.link.bits_per_s = 4.5e9;
  const Wires faster{.latency_s = 1e-4, .bytes_per_s = 4.5e9 / 8, .add_s_per_byte = 1e-10};
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], faster).text, "");
}

TEST(UsefulRate, MayNotExistIfOneProcessIsAsFastAsTheUpperEnd) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[0].samples_per_s_95 = Interval{250, 1300};  // 98 ms, less than a step without communication
  EXPECT_FALSE(RateOf(rows)->high.has_value());
  EXPECT_EQ(Sentence(rows), "undecided from 2.9 Gbit/s per link (derived)");
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], kGigabitWires).rate, "");
}

TEST(UsefulRate, NoneSufficesIfLatencyOrComputingIsTooLong) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  Wires far = kGigabitWires;
  far.latency_s = 0.1;  // six times is more than 300 ms
  EXPECT_FALSE(RateOf(rows, far).has_value());
  EXPECT_EQ(WorthDistributing(rows, rows[2], rows[0], far).text, "");
  rows[1] = TimedRow("none", 4, 420);
  EXPECT_FALSE(RateOf(rows).has_value());
  EXPECT_THAT(Sentence(rows), Has("even without communication (none), 4 workers are not faster"));
  rows[1].configuration.oversubscribed = true;  // with a core each they are faster
  EXPECT_THAT(Sentence(rows), Has("from 4.2 Gbit/s per link, with one core per worker"));
}

}  // namespace
}  // namespace psring
