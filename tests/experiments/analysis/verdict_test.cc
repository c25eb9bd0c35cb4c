#include "experiments/analysis/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/translate.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

// The line, each fact as "label: text", and the details.
std::string TextOf(const RunVerdict& verdict) {
  std::string text = verdict.line;
  for (const auto& [label, fact] : verdict.facts) absl::StrAppend(&text, "\n", label, ": ", fact);
  for (const std::string& detail : verdict.details) absl::StrAppend(&text, "\n", detail);
  return text;
}

std::string English(const std::vector<SummaryRow>& rows) { return TextOf(VerdictOf(rows, kGigabitWires)); }
std::string Chinese(const std::vector<SummaryRow>& rows) {
  return InLanguage(Language::kChinese, [&] { return English(rows); });
}

TEST(Verdict, RecommendsTheFastestAndSaysWhy) {
  EXPECT_EQ(
      English(RowsOfFour(200, 500)),
      "Use ring with 4 workers: 640 samples/s on 1 Gbit/s. One process: 320.\n"
      "fastest strategy: ring, 2.50 times as fast as ps-sync (95%: 2.50 to 2.50)\n"
      "gain: 2.00 times as fast as one process (95%: 2.00 to 2.00)\n"
      "ring is faster: with 4 workers, the busiest link carries 1.5 gradients with ring, and 3 with one "
      "server on rank 0's host (push and pull at the same time).");
}

TEST(Verdict, IsOneLineAndAtMostThreeFacts) {
  std::vector<SummaryRow> rows = RowsOfFour(380, 900);
  for (const auto& row : {TimedRow("none", 2, 100), TimedRow("ring", 2, 110), TimedRow("ps-sync", 2, 160),
                          TimedRow("ps-async", 2, 60)})
    rows.push_back(row);
  const RunVerdict verdict = VerdictOf(rows, kGigabitWires);
  EXPECT_THAT(verdict.line, Lacks("\n"));
  ASSERT_EQ(verdict.facts.size(), 3u);
  EXPECT_EQ(verdict.facts[2].label, "more workers");
  ASSERT_FALSE(verdict.details.empty());
  EXPECT_THAT(verdict.details.front(), StartsWith("not comparable: ps-async, 1.83 times as fast as ring"));
}

TEST(Verdict, SaysWhetherTheServersWireDecides) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(TimedRow("ps-sync", 4, 220));
  rows.back().configuration.training.server_wire = "stream";
  for (SummaryRow& row : rows) row.mean.wires = {"TCP"};
  EXPECT_THAT(English(rows),
              Has("servers' wire: with gRPC ring is 2.50 times as fast as ps-sync, over the same "
                  "sockets 1.10 times: the wire decides more than the scheme"));
  EXPECT_THAT(Chinese(rows), Has("服务器的传输: 使用 gRPC 时，ring 的速度是 ps-sync 的 2.50 倍"));
}

TEST(Verdict, FactsAreAlignedAndWrapped) {
  const RunVerdict verdict{.facts = {{"gain", "2.00 times"}, {"no winner", std::string(60, 'x') + " y"}}};
  EXPECT_EQ(FactsText(verdict).substr(0, 29), "  gain        2.00 times\n  no");
  EXPECT_THAT(FactsText({.facts = {{"a", absl::StrCat(std::string(100, 'x'), " y")}}}), Has("x\n      y\n"));
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
  EXPECT_THAT(reason("dedicated", 0, "pipelined", 4), Has("and 4 with one dedicated server (push and pull"));
  EXPECT_THAT(reason("dedicated", 0, "serial", 4), Has("and 8 with one dedicated server (push, then pull)"));
  EXPECT_THAT(reason("dedicated", 2, "pipelined", 4), Has("and 2 with 2 dedicated servers"));
  EXPECT_THAT(reason("dedicated", 0, "pipelined", 2),
              Has("with 2 workers, the busiest link carries 1 gradient with ring, and 2 with one dedicated"));
  const std::string by_time = "because an exchange takes 1200 ms in theory, and with ps-sync";
  EXPECT_THAT(reason("rank0", 0, "pipelined", 2), Has(by_time)) << "one gradient, as in the ring";
  EXPECT_THAT(reason("dedicated", 4, "pipelined", 4), Has(by_time)) << "fewer than in the ring";
  EXPECT_THAT(reason("colocated", 0, "pipelined", 4), Has(by_time)) << "as many as in the ring";
}

TEST(Verdict, TheReasonAgainstAServerOfRowsIsTheory) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  for (SummaryRow& row : rows) row.configuration.model.has_tables = true;
  EXPECT_THAT(English(rows),
              Has("ring is faster because an exchange takes 1200 ms in theory, and with ps-sync 3200 ms."));
}

TEST(Verdict, CountsTheTokensOfTexts) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.configuration.training.data = "text";
  EXPECT_THAT(English(rows), StartsWith("Use one process: 320 tokens/s. Four"));
  EXPECT_THAT(Chinese(rows), StartsWith("请只用一个进程：每秒 320 个 token。"));
}

TEST(Verdict, RecommendsOneProcessIfItIsFaster) {
  EXPECT_THAT(
      English(RowsOfFour(1000, 2500)),
      StartsWith("Use one process: 320 samples/s. Four workers on 1 Gbit/s: 128 (ring).\n"
                 "worth distributing: from 4.2 Gbit/s per link (derived)\n"
                 "if you must distribute: ring, 2.50 times as fast as ps-sync (95%: 2.50 to 2.50)\n"));
  EXPECT_EQ(VerdictOf(RowsOfFour(1000, 2500), kGigabitWires).next_flags,
            std::vector<std::string>{"--link 4.2gbit"});
  EXPECT_EQ(Recommended(RowsOfFour(1000, 2500)), std::vector<std::string>{"single"});
}

TEST(Verdict, NamesTheNetwork) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.link.latency_s = 5e-4;
  EXPECT_THAT(English(rows), Has("Four workers on 1 Gbit/s with 0.5 ms of latency: 128"));
  for (SummaryRow& row : rows) {
    row.link = {};
    row.configuration.on_machines = true;
  }
  EXPECT_THAT(English(rows), Has("Four workers on the network of these machines: 128"));
}

TEST(Verdict, IsUndecidedIfTheWorkersAreNotShownToBeFasterOrSlower) {
  // 390 ms with an interval that includes the 400 ms of as many samples in one process.
  std::vector<SummaryRow> rows = RowsOfFour(390, 1000, 0.05);
  EXPECT_THAT(English(rows),
              StartsWith("Undecided at 1 Gbit/s: one process 320 samples/s, 4 workers 328 (ring).\n"));
  EXPECT_THAT(English(rows), Has("if you must distribute: ring, 2.56 times", "gain: 1.0"));
  EXPECT_THAT(VerdictOf(rows, kGigabitWires).next_flags, testing::Contains("--repeats 9"));
  EXPECT_THAT(Recommended(rows), IsEmpty());
  EXPECT_THAT(Chinese(rows),
              StartsWith("在 1 Gbit/s 时无法确定：一个进程每秒 320 个样本，4 个 worker 为 328（ring）。"));
  for (SummaryRow& row : rows) row.link = {};
  EXPECT_THAT(English(rows), StartsWith("Undecided on this machine's loopback: "));
}

TEST(Verdict, SaysWhyItIsUndecidedIfTheIntervalExcludesOneOrRowsAreNotValid) {
  // 430 ms, not 400: an interval below 1, but not significant at 1%.
  std::vector<SummaryRow> rows = RowsOfFour(430, 1000, 0.02);
  EXPECT_THAT(
      English(rows),
      StartsWith("Undecided at 1 Gbit/s, because the difference is below 2% or not significant at 1%: "));
  EXPECT_THAT(English(rows),
              Has("no gain: 4 workers with ring were slower: 0.93 times as fast as one process"));
  rows[2].valid = false;
  EXPECT_THAT(English(rows),
              StartsWith("Undecided at 1 Gbit/s, because its rows are not valid: one process"));
  EXPECT_THAT(Chinese(rows), StartsWith("在 1 Gbit/s 时无法确定（因为所用的行无效）："));
}

TEST(Verdict, RecommendsOneProcessBeforeItSaysThatNoStrategyIsFaster) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.round_samples_per_s.resize(1);
  EXPECT_THAT(English(rows), StartsWith("Use one process: 320 samples/s"));
  EXPECT_THAT(English(rows), Has("no winner: ring, ps-sync: one round gives no interval"));
}

TEST(Verdict, RecommendsFewerWorkersIfTheyAreShownToBeFaster) {
  std::vector<SummaryRow> rows = RowsOfFour(380, 900);
  for (const auto& row : {TimedRow("none", 2, 100), TimedRow("ring", 2, 110), TimedRow("ps-sync", 2, 160)})
    rows.push_back(row);
  const std::string text = English(rows);
  EXPECT_THAT(text, StartsWith("Use ring with 2 workers: 582 samples/s on 1 Gbit/s. One process: 320."));
  EXPECT_THAT(text, Has("fastest strategy: ring, 1.45 times",
                        "more workers: 4 are slower: 337 samples/s (ring), not 582"));
  EXPECT_THAT(RowsOfVerdict(rows), ElementsAre(0, 2, 4, 5, 6));
}

TEST(Verdict, SaysWhyMoreWorkersThanCoresAreNotRecommended) {
  std::vector<SummaryRow> rows = RowsOfFour(110, 120);
  for (SummaryRow& row : rows) row.configuration.oversubscribed = row.configuration.workers > 1;
  for (const auto& row : {TimedRow("none", 2, 100), TimedRow("ring", 2, 110), TimedRow("ps-sync", 2, 160)})
    rows.push_back(row);
  const std::string text = English(rows);
  EXPECT_THAT(text, StartsWith("Use ring with 2 workers"));
  EXPECT_THAT(text, Has("more workers: 4 share cores, so their times are not compared"));
  rows = RowsOfFour(110, 120);
  EXPECT_THAT(English(rows), Lacks("share cores"));
}

TEST(Verdict, UsesOnlyTheRowsThatItCompares) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows.push_back(TimedRow("ring", 2, 800));
  rows.push_back(TimedRow("ps-async", 4, 1500));
  rows.push_back(TimedRow("ps-async", 4, 900));  // faster
  EXPECT_THAT(RowsOfVerdict(rows), ElementsAre(0, 1, 2, 3, 6));
  rows[4].valid = false;  // not used
  EXPECT_THAT(English(rows), Lacks("Not valid"));
  for (const size_t used : {0, 2}) {
    std::vector<SummaryRow> wrong = rows;
    wrong[used].valid = false;
    EXPECT_THAT(English(wrong), StartsWith("Not valid. Use one process: "));
  }
  EXPECT_THAT(RowsOfVerdict({TimedRow("ring", 4, 1000)}), IsEmpty());
}

TEST(Verdict, NamesTheRateFromWhichDistributingHelps) {
  EXPECT_THAT(TextOf(VerdictOf(RowsOfFour(1000, 2500), std::nullopt)), Lacks("worth distributing"));
  const std::vector<SummaryRow> rows = OversubscribedRowsOfFour(1000, 2500);
  EXPECT_THAT(English(rows), Has("from 4.2 Gbit/s per link, with one core per worker (derived)"));
  EXPECT_THAT(RowsOfVerdict(rows), ElementsAre(0, 1, 2, 3, 4)) << "none with 2 workers, too";
}

TEST(Verdict, NamesNoStrategyIfNoDifferenceIsShown) {
  const std::string uncertain = English(RowsOfFour(1000, 1010, 0.2));
  EXPECT_THAT(uncertain,
              Has("no winner: ring, ps-sync: the differences are below 2% or too uncertain for 3 rounds"));
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.round_samples_per_s.resize(1);
  EXPECT_THAT(English(rows), Has("one round gives no interval"));
}

TEST(Verdict, RecommendsEqualStrategiesTogether) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(TimedRow("star", 4, 200.2));
  EXPECT_THAT(English(rows),
              Has("Use ring or star with 4 workers", "fastest strategy: ring or star, 2.50 times",
                  "No difference between ring and star is shown."));
}

TEST(Verdict, DoesNotClaimThatTheoryExplainsADifferenceThatItDoesNotPredict) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  rows[3].predicted_comm_ms = 1190;
  EXPECT_THAT(English(rows),
              Has("Theory, which excludes processor time, does not predict that ring is faster"));
  EXPECT_THAT(English(rows), Lacks("because"));
}

TEST(Verdict, ConcludesNothingAboutNetworksFromALoopback) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);
  for (SummaryRow& row : rows) row.link = {};
  EXPECT_THAT(English(rows), Has("Four workers on this machine's loopback: 128"));
  EXPECT_THAT(English(rows), Lacks("worth distributing", "because"));
}

TEST(Verdict, NamesNoMachineIfTimesAreOfAVirtualClock) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  for (SummaryRow& row : rows) {
    row.link = {};
    row.configuration.training.clock = "virtual";
  }
  const std::string text = English(rows);
  EXPECT_THAT(text,
              StartsWith("Use ring with 4 workers: 640 samples/s on the simulated network. One process: 320. "
                         "Simulated.\n"));
  EXPECT_THAT(text, Lacks("machine"));
}

TEST(Verdict, NamesNoStrategyIfWorkersShareCoresAndNoLinkLimitsThem) {
  std::vector<SummaryRow> rows = RowsOfFour(110, 120);
  for (SummaryRow& row : rows) row.configuration.oversubscribed = row.configuration.workers > 1;
  EXPECT_THAT(English(rows), Has("No winner: the workers share this machine's cores"));
}

TEST(Verdict, ReportsAFasterAsynchronousStrategyAsAnotherKindOfTraining) {
  std::vector<SummaryRow> rows = RowsOfFour(200, 500);
  rows.push_back(TimedRow("ps-async", 4, 100));
  EXPECT_THAT(English(rows), StartsWith("Use ring"));
  EXPECT_THAT(English(rows),
              Has("not comparable: ps-async, 2.00 times as fast as ring (95%: 2.00 to 2.00), but its "
                  "gradients are late: compare accuracy, too"));
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
              Has("ps-async (worker 0 makes 84% of the samples), 2.00 times as fast as ring (95%: 2.00 to "
                  "2.00), but its gradients are late"));
  EXPECT_THAT(Chinese(rows), Has("ps-async（worker 0 占 84% 的样本），速度"));
  rows.back() = UnevenRow({40, 440, 480, 40});
  EXPECT_THAT(English(rows), Has("ps-async (workers 1 and 2 make 92% of the samples), 2.00"));
  rows.back() = UnevenRow({370, 210, 210, 210});
  EXPECT_THAT(English(rows), Has("ps-async, 2.00")) << "less than 1.5/N";
}

TEST(Verdict, ComparesAnAsynchronousStrategyWithOneProcessAndWithTheStrategyToUseAnyway) {
  std::vector<SummaryRow> rows = RowsOfFour(1000, 2500);  // one process takes 400 ms for as many samples
  rows.push_back(TimedRow("ps-async", 4, 500));
  EXPECT_THAT(English(rows),
              StartsWith("Use one process: 320 samples/s. Four workers on 1 Gbit/s: 128 (ring).\n"));
  EXPECT_THAT(English(rows), Has("if you must distribute: ring", "ps-async, 2.00 times as fast as ring"));
  EXPECT_THAT(Chinese(rows),
              Has("ps-async，速度是 ring 的 2.00 倍（95%：2.00 至 2.00），但它的梯度是迟到的："));
  rows.back() = TimedRow("ps-async", 4, 200);
  EXPECT_THAT(English(rows), Has("ps-async, 2.00 times as fast as one process"));
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
  EXPECT_THAT(English(rows), Has("see its accuracy (0.843, ring 0.852; 2 workers, one seed)"));
  EXPECT_THAT(Chinese(rows), Has("请看其准确率（0.843，ring 为 0.852；2 个 worker，一个随机种子）"));
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
          EXPECT_THAT(text, StartsWith("No winner: the workers share"));
          continue;
        }
        const bool one = ring_ms > 400;
        EXPECT_EQ(text.starts_with("Use one process"), one) << text;
        EXPECT_EQ(text.starts_with("Use ring"), !one) << text;
        EXPECT_EQ(absl::StrContains(text, "from 4.2 Gbit/s per link"), one) << text;
        EXPECT_EQ(absl::StrContains(text, "one core per worker"), one && oversubscribed) << text;
        const double to_one = 400 / async_ms, to_ring = ring_ms / async_ms;
        const bool beats_one = one && to_one > 1.02, beats_ring = !beats_one && to_ring > 1.02;
        const auto says = [&](double factor, const char* than) {
          return absl::StrContains(
              text, absl::StrFormat("ps-async, %.2f times as fast as %s (95%%: %.2f to %.2f)", factor, than,
                                    factor, factor));
        };
        EXPECT_EQ(says(to_one, "one process"), beats_one) << text;
        EXPECT_EQ(says(to_ring, "ring"), beats_ring) << text;
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
  EXPECT_THAT(text, StartsWith("请只用一个进程：每秒 320 个样本。1 Gbit/s 上 4 个 worker：128（ring）。\n"
                               "值得分布: 每条链路达到 4.2 Gbit/s 起（推导）\n"));
  EXPECT_THAT(Chinese(RowsOfFour(200, 500)), StartsWith("请用 ring 与 4 个 worker："));
}

}  // namespace
}  // namespace psring
