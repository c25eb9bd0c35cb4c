#include "experiments/analysis/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/text/translate.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

std::string English(const std::vector<SummaryRow>& rows) { return Verdict(rows, kGigabitWires); }
std::string Chinese(const std::vector<SummaryRow>& rows) {
  return InLanguage(Language::kChinese, [&] { return English(rows); });
}

TEST(Verdict, RecommendsTheFastestAndSaysWhy) {
  const std::string text = English(RowsOfFour(200, 500));
  EXPECT_THAT(text, StartsWith("Use ring: 2.50 ("));
  EXPECT_THAT(text, Has("times as fast as ps-sync with 4 workers on 1 Gbit/s links",
                        "because the busiest link carries 3 gradients one after another with one server on "
                        "rank 0's host (push and pull at the same time), and 1.5 with ring."));
}

TEST(Verdict, TheReasonFollowsFromPlacementScheduleAndBuckets) {
  const auto reason = [](const std::string& placement, int servers, const std::string& schedule,
                         int workers) {
    std::vector<SummaryRow> rows = {TimedRow("single", 1, 100), TimedRow("none", workers, 100),
                                    TimedRow("ring", workers, 200), TimedRow("ps-sync", workers, 500)};
    rows[2].predicted_comm_ms = 1200;
    rows[3].predicted_comm_ms = 3200;
    TrainingOptions& training = rows[3].configuration.training;
    training.server_placement = placement;
    training.servers = servers;
    training.ps_schedule = schedule;
    return English(rows);
  };
  EXPECT_THAT(reason("dedicated", 0, "pipelined", 4), Has("carries 4 gradients one after another with one "
                                                          "dedicated server (push and pull"));
  EXPECT_THAT(reason("dedicated", 0, "serial", 4), Has("carries 8 gradients one after another with one "
                                                       "dedicated server (push, then pull)"));
  EXPECT_THAT(reason("dedicated", 2, "pipelined", 4), Has("carries 2 gradients"));
  const std::string by_time = "because an exchange takes 1200 ms in theory, and with ps-sync";
  EXPECT_THAT(reason("rank0", 0, "pipelined", 2), Has(by_time)) << "one gradient, as in the ring";
  EXPECT_THAT(reason("dedicated", 4, "pipelined", 4), Has(by_time)) << "fewer than in the ring";
  EXPECT_THAT(reason("colocated", 0, "pipelined", 4), Has(by_time)) << "as many as in the ring";
}

TEST(Verdict, TheReasonAgainstAServerOfRowsIsTheory) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  for (SummaryRow& row : rows) row.configuration.model.has_tables = true;
  EXPECT_THAT(English(rows), Has("because an exchange takes 1200 ms in theory, and with ps-sync 3200 ms"));
}

TEST(Verdict, CountsTheTokensOfTexts) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.configuration.training.data = "text";
  EXPECT_THAT(English(rows), StartsWith("Use one process: it processes 320 tokens/s, but"));
  EXPECT_THAT(Chinese(rows), StartsWith("请只用一个进程：它每秒处理 320 个 token，"));
}

TEST(Verdict, TheFirstSentenceRecommendsOneProcessIfItIsFaster) {
  const std::string text = English(RowsOfFour(1000, 2500));
  EXPECT_THAT(text, StartsWith("Use one process: it processes 320 samples/s, but 4 workers on 1 Gbit/s links "
                               "process only 128 with the fastest strategy, ring. "));
  EXPECT_THAT(text, Has("If you distribute the model anyway, use ring: 2.50 (",
                        "times as fast as ps-sync with 4 workers, because the busiest link"));
  EXPECT_THAT(text, Lacks("Use ring"));
  EXPECT_EQ(Recommended(RowsOfFour(1000, 2500)), std::vector<std::string>{"single"});
}

TEST(Verdict, RecommendsOneProcessIfTheWorkersAreNotShownToBeFaster) {
  // 390 ms with an interval that includes the 400 ms of as many samples in one process.
  const std::string text = English(RowsOfFour(390, 1000, 0.05));
  EXPECT_THAT(text,
              StartsWith("Use one process: 4 workers on 1 Gbit/s links are not shown to be faster; with "
                         "the fastest strategy, ring, they process 1.02 ("));
  EXPECT_THAT(text, Has("If you distribute the model anyway, use ring"));
}

TEST(Verdict, RecommendsOneProcessBeforeItSaysThatNoStrategyIsFaster) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.round_samples_per_s.resize(1);
  EXPECT_THAT(English(rows), StartsWith("Use one process: it processes 320 samples/s"));
  EXPECT_THAT(English(rows), Has("None of ring, ps-sync is shown to be faster"));
}

TEST(Verdict, RecommendsFewerWorkersIfTheyAreShownToBeFaster) {
  std::vector<SummaryRow> rows = RowsOfFour(380, 900);
  for (const auto& row : {TimedRow("none", 2, 100), TimedRow("ring", 2, 110), TimedRow("ps-sync", 2, 160)})
    rows.push_back(row);
  const std::string text = English(rows);
  EXPECT_THAT(text, StartsWith("Use ring: 1.45 ("));
  EXPECT_THAT(text, Has("with 2 workers on 1 Gbit/s links",
                        "More workers are slower: 4 process 337 samples/s with ring, instead of 582."));
  EXPECT_THAT(RowsOfVerdict(rows), ElementsAre(0, 2, 4, 5, 6));
}

TEST(Verdict, UsesOnlyTheRowsThatItCompares) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows.push_back(TimedRow("ring", 2, 800));
  rows.push_back(TimedRow("ps-async", 4, 1500));
  rows.push_back(TimedRow("ps-async", 4, 900));  // faster
  EXPECT_THAT(RowsOfVerdict(rows), ElementsAre(0, 1, 2, 3, 6));
  rows[4].valid = false;  // not used
  EXPECT_THAT(English(rows), Lacks("disturbed"));
  for (const size_t used : {0, 2}) {
    std::vector<SummaryRow> wrong = rows;
    wrong[used].valid = false;
    EXPECT_THAT(English(wrong), StartsWith("Not valid: other programs disturbed the rows marked !"));
  }
  EXPECT_THAT(RowsOfVerdict({TimedRow("ring", 4, 1000)}), IsEmpty());
}

TEST(Verdict, NamesTheRateFromWhichDistributingHelps) {
  EXPECT_THAT(English(RowsOfFour(1000, 2500)),
              Has("with the fastest strategy, ring. Distribute this model only on links of at least 4.2 "
                  "Gbit/s with 4 workers (derived). If you distribute the model anyway"));
  EXPECT_THAT(Verdict(RowsOfFour(1000, 2500), std::nullopt), Lacks("on links of at least"));
  const std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  EXPECT_THAT(English(rows), Has("at least 4.2 Gbit/s with 4 workers, one core each (derived)."));
  EXPECT_THAT(RowsOfVerdict(rows), ElementsAre(0, 1, 2, 3, 4)) << "none with 2 workers, too";
}

TEST(Verdict, SaysByHowMuchDistributingHelps) {
  EXPECT_THAT(English(RowsOfFour(200, 500)),
              Has("ring is 2.00 (2.00 to 2.00) times as fast as one process (320 "
                  "samples/s)."));
}

TEST(Verdict, NamesNoStrategyIfNoDifferenceIsShown) {
  const std::string uncertain = English(RowsOfFour(1000, 1010, 0.2));
  EXPECT_THAT(uncertain, Has("None of ring, ps-sync is shown to be faster with 4 workers on 1 Gbit/s links: ",
                             "too uncertain for 3 rounds"));
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.round_samples_per_s.resize(1);
  EXPECT_THAT(English(rows), Has("one round gives no interval"));
}

TEST(Verdict, RecommendsEqualStrategiesTogether) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(TimedRow("star", 4, 200.2));
  EXPECT_THAT(English(rows), Has("Use ring or star: 2.50", "No difference between ring and star is shown."));
}

TEST(Verdict, DoesNotClaimThatTheoryExplainsADifferenceThatItDoesNotPredict) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[3].predicted_comm_ms = 1190;
  EXPECT_THAT(English(rows), Has("theory, which excludes processor time, predicts no such difference"));
  EXPECT_THAT(English(rows), Lacks("because"));
}

TEST(Verdict, ConcludesNothingAboutNetworksFromALoopback) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.link = {};
  EXPECT_THAT(English(rows), Has("programs and processor time on one machine, not networks"));
  EXPECT_THAT(English(rows), Lacks("only on links"));
}

TEST(Verdict, NamesNoMachineIfTimesAreOfAVirtualClock) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  for (SummaryRow& row : rows) {
    row.link = {};
    row.configuration.training.clock = "virtual";
  }
  const std::string text = English(rows);
  EXPECT_THAT(text,
              Has("Use ring: 2.50", "with 4 workers on the simulated network.", "Times are simulated."));
  EXPECT_THAT(text, Lacks("machine"));
}

TEST(Verdict, NamesNoStrategyIfWorkersShareCoresAndNoLinkLimitsThem) {
  std::vector<SummaryRow> rows = RowsOfFour(110, 120);
  for (SummaryRow& row : rows) row.configuration.oversubscribed = row.configuration.workers > 1;
  EXPECT_THAT(English(rows), Has("No strategy is named"));
}

TEST(Verdict, ReportsAFasterAsynchronousStrategyAsAnotherKindOfTraining) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(TimedRow("ps-async", 4, 100));
  EXPECT_THAT(English(rows), StartsWith("Use ring"));
  EXPECT_THAT(English(rows), Has("ps-async is 2.00 (2.00 to 2.00) times as fast as ring, but its "
                                 "gradients are late: compare accuracy, too."));
  rows.back() = TimedRow("ps-async", 4, 199);
  EXPECT_THAT(English(rows), Lacks("ps-async")) << "a difference below 2%";
  rows.back() = TimedRow("ps-async", 4, 100, /*spread=*/0.4);
  EXPECT_THAT(English(rows), Lacks("ps-async")) << "too uncertain";
  rows.back() = TimedRow("ps-async", 4, 400);
  EXPECT_THAT(English(rows), Lacks("ps-async")) << "slower";
}

TEST(Verdict, NamesAWorkerThatMakesMostOfTheSamplesInTheSameSentence) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(UnevenRow({840, 60, 50, 50}));
  EXPECT_THAT(English(rows),
              Has("ps-async (worker 0 makes 84% of the samples) is 2.00 (2.00 to 2.00) times as "
                  "fast as ring, but its gradients are late"));
  EXPECT_THAT(Chinese(rows), Has("ps-async（worker 0 占 84% 的样本） 的速度"));
  rows.back() = UnevenRow({40, 440, 480, 40});
  EXPECT_THAT(English(rows), Has("ps-async (workers 1 and 2 make 92% of the samples) is 2.00"));
  rows.back() = UnevenRow({370, 210, 210, 210});
  EXPECT_THAT(English(rows), Has("ps-async is 2.00")) << "less than 1.5/N";
}

TEST(Verdict, ComparesAnAsynchronousStrategyWithOneProcessAndWithTheStrategyToUseAnyway) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);  // one process takes 400 ms for as many samples
  rows.push_back(TimedRow("ps-async", 4, 500));
  EXPECT_THAT(English(rows),
              StartsWith("Use one process: it processes 320 samples/s, but 4 workers on 1 Gbit/s "
                         "links process only 128 with the fastest synchronous strategy, ring. "));
  EXPECT_THAT(English(rows), Has("If you distribute the model anyway, use ring",
                                 "ps-async is 2.00 (2.00 to 2.00) times as fast as ring, but"));
  EXPECT_THAT(Chinese(rows), Has("ps-async 的速度是 ring 的 2.00（2.00 至 2.00）倍，但它的梯度是迟到的："));
  rows.back() = TimedRow("ps-async", 4, 200);
  EXPECT_THAT(English(rows), Has("ps-async is 2.00 (2.00 to 2.00) times as fast as one process, but"));
  EXPECT_THAT(English(rows), Lacks("as fast as ring, but"));
  rows.back() = TimedRow("ps-async", 4, 1100);
  EXPECT_THAT(English(rows), Lacks("ps-async")) << "slower than both";
}

TEST(Verdict, NamesTheAccuracyOfAFasterAsynchronousStrategy) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(TimedRow("ps-async", 4, 100));
  const auto add = [&](const char* strategy, int workers, double accuracy, int trainings) {
    rows.push_back({.configuration = TestConfiguration(strategy, workers)});
    rows.back().test_accuracy = accuracy;
    rows.back().trainings = trainings;
  };
  add("ps-async", 2, 0.8431, 1);
  EXPECT_THAT(English(rows), Has("compare accuracy, too")) << "ring was not trained with 2 workers";
  add("ring", 2, 0.8515, 1);
  EXPECT_THAT(English(rows), Has("see its accuracy (0.843, ring 0.852; 2 workers, one seed)."));
  EXPECT_THAT(Chinese(rows), Has("请看其准确率（0.843，ring 为 0.852；2 个 worker，一个随机种子）。"));
  add("ring", 3, 0.81, 1);
  add("ps-async", 3, 0.82, 1);
  EXPECT_THAT(English(rows), Has("(0.820, ring 0.810; 3 workers, one seed)")) << "more workers";
  rows[2].test_accuracy = 0.8;
  rows[4].test_accuracy = 0.7;
  rows[4].trainings = 3;
  EXPECT_THAT(English(rows), Has("(0.700, ring 0.800; 4 workers, mean of 3 seeds)")) << "its own";
}

// One process takes 400 ms for the samples of a step.
TEST(Verdict, EverySentenceFollowsFromTheRows) {
  for (const bool oversubscribed : {false, true}) {
    for (const double ring_ms : {150.0, 390.0, 450.0, 1000.0}) {
      for (const double async_ms : {100.0, 160.0, 395.0, 420.0, 900.0, 1200.0}) {
        SCOPED_TRACE(absl::StrFormat("%d %g %g", oversubscribed, ring_ms, async_ms));
        std::vector<SummaryRow> rows = oversubscribed ? OversubscribedRowsOfFour(ring_ms, 2.5 * ring_ms)
                                                      : RowsOfFour(ring_ms, 2.5 * ring_ms);
        rows.push_back(TimedRow("ps-async", 4, async_ms));
        rows.back().configuration.oversubscribed = oversubscribed;
        const std::string text = English(rows);
        if (oversubscribed &&
            std::min(ring_ms, async_ms) < 2 * 200) {  // computing takes more than half of it
          EXPECT_THAT(text, StartsWith("No strategy is named"));
          continue;
        }
        const bool one = ring_ms > 400;
        EXPECT_EQ(text.starts_with("Use one process"), one) << text;
        EXPECT_EQ(text.starts_with("Use ring"), !one) << text;
        EXPECT_EQ(absl::StrContains(text, "at least 4.2 Gbit/s with 4 workers"), one) << text;
        EXPECT_EQ(absl::StrContains(text, "one core each"), one && oversubscribed) << text;
        const double to_one = 400 / async_ms, to_ring = ring_ms / async_ms;
        const bool beats_one = one && to_one > 1.02, beats_ring = !beats_one && to_ring > 1.02;
        EXPECT_EQ(
            absl::StrContains(text, absl::StrFormat("ps-async is %.2f (%.2f to %.2f) times as fast as one "
                                                    "process, but",
                                                    to_one, to_one, to_one)),
            beats_one)
            << text;
        EXPECT_EQ(
            absl::StrContains(text, absl::StrFormat("ps-async is %.2f (%.2f to %.2f) times as fast as ring, "
                                                    "but",
                                                    to_ring, to_ring, to_ring)),
            beats_ring)
            << text;
        EXPECT_EQ(absl::StrContains(text, "its gradients are late"), beats_one || beats_ring) << text;
      }
    }
  }
}

TEST(Verdict, RecommendedAreTheStrategiesThatItNames) {
  EXPECT_EQ(Recommended(RowsOfFour(200, 500)), std::vector<std::string>{"ring"});
  EXPECT_EQ(Recommended(RowsOfFour(500, 200)), std::vector<std::string>{"ps-sync"});
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(TimedRow("star", 4, 200.2));
  EXPECT_EQ(Recommended(rows), (std::vector<std::string>{"ring", "star"}));
  EXPECT_TRUE(Recommended(RowsOfFour(200, 200)).empty()) << "no difference is shown";
  EXPECT_TRUE(Recommended({TimedRow("ring", 4, 1000)}).empty()) << "nothing to choose from";
}

TEST(Verdict, IsEmptyWithNothingToChooseFrom) {
  EXPECT_EQ(English({}), "");
  EXPECT_EQ(English({TimedRow("single", 1, 100), TimedRow("ring", 4, 1000), TimedRow("ps-async", 4, 900)}),
            "");
}

TEST(Verdict, IsAlsoInChinese) {
  const std::string text = Chinese(RowsOfFour(1000, 2500));
  EXPECT_THAT(text, StartsWith("请只用一个进程：它每秒处理 320 个样本，而在 1 Gbit/s 链路上 4 个 worker "
                               "用最快的策略 ring 也只有 128 个。"));
  EXPECT_THAT(text, Has("4.2 Gbit/s"));
  EXPECT_THAT(Chinese(RowsOfFour(200, 500)), StartsWith("请用 ring："));
}

}  // namespace
}  // namespace psring
