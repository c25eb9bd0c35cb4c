#include "experiments/verbs/explain/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "experiments/costs/sharded_costs.h"
#include "experiments/page/playback.h"
#include "experiments/verbs/explain/explain_layouts.h"
#include "experiments/verbs/explain/explain_program.h"
#include "experiments/verbs/explain/explain_verb.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using ::testing::AllOf;

std::string TextOf(const std::string& algorithm, int ranks, const std::string& collective = "all_reduce") {
  return Explain({.algorithm = algorithm, .collective = collective, .shape = {.ranks = ranks}}).value();
}

void ExpectLinesFit(const std::string& text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n'))
    EXPECT_LE(TextColumns(std::string(line)), 110u) << line;
}

TEST(ExplainTest, DescribesTheRoundsOfARing) {
  const std::string text = TextOf("ring", 4);
  EXPECT_THAT(text, Has("round 1 of 6\n   3 -> 0   chunk 3       added; the sum is now 0+3\n",
                        "round 4 of 6\n   3 -> 0   chunk 0       replaces the value; it is now all\n",
                        "sent so far: each 0.25 M (1.049 MB)", "sent so far: each 1.5 M (6.291 MB)",
                        "At the end every rank has the required result."));
}

TEST(ExplainTest, CountsInTheRoundsEqualTheory) {
  EXPECT_THAT(TextOf("ring", 4), Has("6 a + 1.5 M/B + 0.75 M g\n  theory                       2(N-1) a"));
  EXPECT_THAT(TextOf("star", 4), Has("2 a + 6 M/B + 3 M g"));
  EXPECT_THAT(TextOf("direct", 4), Has("2 a + 1.5 M/B + 0.75 M g"));
  EXPECT_THAT(TextOf("halving-doubling", 4), Has("4 a + 1.5 M/B + 0.75 M g"));
}

TEST(ExplainTest, AnAllToAllShowsWhereBlocksComeFrom) {
  const std::string pairwise = TextOf("pairwise", 3, "all_to_all");
  EXPECT_THAT(pairwise,
              Has("pairwise all_to_all, 3 workers: in round k",
                  "round 2 of 2\n   1 -> 0   chunk 2       replaces the value; it is now 1\n",
                  "2 a + 0.6667 M/B + 0 M g\n  theory                       (N-1) a + (N-1)/N M/B\n",
                  "several are in flight together"));
  EXPECT_THAT(TextOf("direct", 3, "all_to_all"),
              AllOf(Has("1 a + 0.6667 M/B + 0 M g", "a + (N-1)/N M/B\n"), Lacks("sums one part")));
  RawExplainFlags raw{.algorithm = "pairwise"};
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunExplain(raw), 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), Has("pairwise all_to_all, 4 workers"))
      << "its only one";
}

TEST(ExplainTest, RanksThatSendDifferentlyAreListed) {
  EXPECT_THAT(TextOf("star", 3), Has("sent so far: rank 0 2 M, rank 1 1 M, rank 2 1 M"));
}

TEST(ExplainTest, EveryScheduleFulfilsEveryCollective) {
  for (const Collective collective : kCollectives) {
    for (const std::string& algorithm : AlgorithmsFor(collective)) {
      for (int ranks : {1, 2, 3, 4, 5, 8, 64}) {
        const std::string text = TextOf(algorithm, ranks, Name(collective));
        EXPECT_THAT(text, Has("every rank has the required result")) << algorithm << " " << ranks;
      }
    }
  }
}

TEST(ExplainTest, WithoutItsLastRoundAScheduleIsNotFulfilled) {
  const auto ring = MakeSchedule("ring", Collective::kAllReduce, {.ranks = 3}).value();
  Playback playback(*ring, Collective::kAllReduce);
  while (playback.next_round() < playback.rounds() - 1) playback.Step();
  EXPECT_FALSE(playback.Fulfilled());
  playback.Step();
  EXPECT_TRUE(playback.Fulfilled());
}

TEST(ExplainTest, LinesFitAPage) {
  for (const std::string& text : {TextOf("ring", 16), TextOf("direct", 8)}) ExpectLinesFit(text);
  const ScopedLanguage chinese(Language::kChinese);
  ExpectLinesFit(TextOf("halving-doubling", 6));
}

TEST(ExplainTest, TheFiguresInChineseAreTheSame) {
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce)) {
    const auto explain = [&] { return Explain({.algorithm = algorithm, .shape = {.ranks = 6}}).value(); };
    const std::string english = explain(), chinese = InLanguage(Language::kChinese, explain);
    // The figures of transfers and costs, in order.
    const auto figures = [](const std::string& text) {
      std::vector<std::string> lines;
      size_t begin = text.find("  1 ->") != std::string::npos ? text.find(" -> ") - 4 : 0;
      for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const std::string line = text.substr(begin, end - begin);
        if (line.find(" -> ") != std::string::npos) lines.push_back(line.substr(0, 10));
        if (const size_t at = line.find(" a + ");
            at != std::string::npos && line.find("/B + ") != std::string::npos) {
          lines.push_back(line.substr(line.find_last_of(' ', at - 1)));
        }
      }
      return lines;
    };
    EXPECT_EQ(figures(chinese), figures(english)) << algorithm;
    EXPECT_GT(figures(english).size(), 3u);
    for (const char* word : {"round ", "sent so far", "At the end", "Cost, with", "added"})
      EXPECT_THAT(chinese, Lacks(word)) << algorithm;
    EXPECT_THAT(chinese, Has("结束时每个 rank 都得到了应得的结果。"));
  }
}

TEST(ExplainTest, AStrategysStepFollowsFromItsRow) {
  const auto step = [](const std::string& name, int workers = 4) {
    std::string text = ExplainStep(*FindStrategy(name), workers).value();
    return absl::StrReplaceAll(text, {{"\n     ", " "}});  // lines of a list that were wrapped
  };
  EXPECT_THAT(step("ps-sync"), Has("One step with 4 workers:", "of all 4 workers, then updates",
                                   "receives 4 M", "--strategy ps-sync --workers 4"));
  EXPECT_THAT(step("ps-backup:1"),
              Has("the first 3 gradients of a step and updates the weights once; it drops "));
  EXPECT_THAT(step("ps-async"), AllOf(Has("with each gradient as it arrives"), Lacks("steps ahead")));
  EXPECT_THAT(step("ps-ssp:2"), Has("2 steps ahead of the slowest"));
  EXPECT_THAT(step("ring"), AllOf(Has("sum (native,"), Has("psring explain ring"), Lacks("server")));
  EXPECT_THAT(step("zero1"), Has("a reduce-scatter gives each worker",
                                 "a parameter server without a server process, with one shard per worker",
                                 "4. An all-gather", "psring explain ring", "--strategy zero1 --workers 4"));
  EXPECT_THAT(step("hybrid"),
              Has("1. Each worker pulls the rows", "sum (native, ring), make", "of all 4 workers row by row",
                  "sends them 4 C (2 + W)", "psring explain ring", "--strategy hybrid --model dlrm-small"));
  EXPECT_THAT(step("hybrid"), Lacks("receives 4 M"));
  EXPECT_THAT(step("none"), Has("replicas diverge"));
  EXPECT_THAT(step("single"), Has("One step with 1 worker:", "It updates the weights"));
  EXPECT_THAT(step("data-parallel"), Has("Device 0 receives all gradients"));
  EXPECT_EQ(ExplainStep(*FindStrategy("ps-backup:4"), 4).status().message(),
            "ps-backup:4 needs more than 4 workers (B: spare workers); set --workers");
  for (const StrategyRow& strategy : StrategyRows()) {
    for (const Language language : {Language::kEnglish, Language::kChinese}) {
      const ScopedLanguage scope(language);
      ExpectLinesFit(ExplainStep(strategy, 4).value());
    }
  }
}

TEST(ExplainTest, TheGlossaryIsInBothLanguages) {
  for (const char* word :
       {"rank", "bucket", "chunk", "round", "push, pull", "staleness", "exposed", "all-gather\n"}) {
    EXPECT_THAT(ExplainWords(), Has(word));
    EXPECT_THAT(InLanguage(Language::kChinese, ExplainWords), Has(word));
  }
}

TEST(WrapTest, BreaksChineseAnywhereExceptBeforePunctuation) {
  EXPECT_EQ(Wrap("一二三四五", "", 4), "一二\n三四\n五\n");
  EXPECT_EQ(Wrap("一二，三", "", 4), "一\n二，\n三\n");
  EXPECT_EQ(Wrap("ab 一二 cd", "- ", 8), "- ab 一\n  二 cd\n");
  EXPECT_EQ(TextColumns("a一，"), 5u);
  EXPECT_EQ(TextColumns("×µ"), 2u);
}

TEST(ExplainTest, UnknownNamesListTheKnownOnes) {
  const auto message = [](const std::string& algorithm, const std::string& collective, int ranks) {
    return std::string(Explain({.algorithm = algorithm, .collective = collective, .shape = {.ranks = ranks}})
                           .status()
                           .message());
  };
  EXPECT_THAT(message("rign", "all_reduce", 4), Has("use one of ring, star, direct, one-shot"));
  EXPECT_THAT(message("ring", "reduce", 4), Has("use one of all_reduce, reduce_scatter"));
  EXPECT_THAT(message("double-binary-tree", "all_gather", 4), Has("offers no all_gather; these do: ring"));
  EXPECT_THAT(message("ring", "all_reduce", 65), Has("at most 64 workers"));
  EXPECT_THAT(message("ring", "all_reduce", 0), Has("at least one"));
}

TEST(ExplainShardsTest, DrawsAStepWithItsExchanges) {
  EXPECT_THAT(ExplainShards(ShardingStrategy("zero2"), 4, 1),
              Has("\n  compute   F0 F1 F2 B2 B2 B1 B1 B0 B0 .  .\n"
                  "  reduce    .  .  .  .  .  R2 U2 R1 U1 R0 U0\n"));
  EXPECT_THAT(ExplainShards(ShardingStrategy("fsdp"), 4, 1),
              Has("\n  compute   .  F0 F1 F2 B2 B2 B1 B1 B0 B0 .\n"
                  "  gather    G0 G1 G2 .  G1 .  G0 .  .  .  .\n"
                  "  reduce    .  .  .  .  .  .  R2 .  R1 .  R0\n"));
  EXPECT_THAT(ExplainShards(ShardingStrategy("fsdp"), 1, 1), Lacks("G0 G1", "R2"));
}

// Without line breaks.
std::string InOneLine(const std::string& text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

TEST(ExplainShardsTest, StatesWhatIsKeptAndSent) {
  const auto text_of = [](const char* row) { return InOneLine(ExplainShards(ShardingStrategy(row), 4, 8)); };
  // 8 micro-batches and 4 workers.
  EXPECT_THAT(text_of("zero2"),
              Has("(M+1) (N-1)/N times", "micro-batches 6.75; without shards 1.5.", "with one, 1.5."));
  EXPECT_THAT(text_of("zero1"), Has("micro-batches 1.5; without shards 1.5."));
  EXPECT_THAT(text_of("fsdp"),
              Has("3 M (N-1)/N times", "N = 4 workers and M = 8 micro-batches 18; without shards 1.5.",
                  "That is the most: ", "with one, 2.25."));
  EXPECT_THAT(text_of("zero2"), Lacks("That is the most"));
  // Two copies of two workers, in which halves of all-reduces send 1/2: 8 and 1, or 8 and 16, and the sum of
  // a shard.
  EXPECT_THAT(text_of("zero2"), Has("--dp_shard S", "With S = 2 that is 5 in all."));
  EXPECT_THAT(text_of("fsdp"), Has("With S = 2 that is 12.5 in all."));
  EXPECT_THAT(ExplainShards(ShardingStrategy("fsdp"), 3, 1), Lacks("With S ="));
  // float32 weights, gradients and optimizer state; in 16 bits.
  EXPECT_THAT(text_of("zero2"), Has("           4           1           2           7 ",
                                    "           2         0.5           3         5.5 "));
}

TEST(ExplainShardsTest, RanksOfASequenceSendKeysOrExchangeHeads) {
  EXPECT_THAT(ExplainContextParallel(2), Has("\n  rank 0   #..#\n  rank 1   .##.\n"));
  EXPECT_THAT(ExplainContextParallel(8), Has("\n  rank 1   .#.. ... ..#.\n", "\n  ...\n"));
  const std::string text = InOneLine(ExplainContextParallel(8));
  EXPECT_THAT(
      text, Has("of the speed, here 53%", "in forward and backward, here 5.25.", "8 (C-1)/C^2, here 0.875;"));
  EXPECT_THAT(text, Has("on: 320 for 100 Gflop/s", "here 240 (derived)"));
  for (const int workers : {1, 2, 8, 1000}) ExpectLinesFit(ExplainContextParallel(workers));
}

TEST(ExplainShardsTest, TensorParallelRanksSendActivations) {
  EXPECT_THAT(ExplainTensorParallel(4),
              Has("\n  rank 3   x -> A columns 4/4    -> GeLU -> B rows 4/4     -> + -> y\n"));
  EXPECT_THAT(InOneLine(ExplainTensorParallel(4)),
              Has("times as much, here 6.", "here 7 h instead of 16 h", "of all activations, here 4 h",
                  "10 halves of an all-reduce instead of 8."));
  EXPECT_THAT(ExplainTensorParallel(8), Has("\n  ...\n"));
}

TEST(ExplainShardsTest, LinesAreNarrowInBothLanguages) {
  for (const Language language : {Language::kEnglish, Language::kChinese}) {
    const ScopedLanguage scope(language);
    for (const int workers : {1, 4, 1000}) {
      for (const StrategyRow& row : ShardingStrategies()) ExpectLinesFit(ExplainShards(row, workers, 8));
      ExpectLinesFit(ExplainTensorParallel(workers));
    }
  }
}

TEST(ExplainProgramTest, DrawsATimelineAndStatesWhatIsInFlight) {
  EXPECT_THAT(ExplainProgram("1f1b", 2, 2).value(),
              Has("\n  rank 0   F0 F1 .  .  B0 B0 .  B1 B1\n  rank 1   .  F0 B0 B0 F1 B1 B1 .  .\n",
                  "Bubble, the part of the step in which a rank computes nothing: 33.3% on average."));
}

TEST(ExplainProgramTest, ShowsTheBubbleOfItsFormula) {
  EXPECT_THAT(ExplainProgram("gpipe", 4, 8).value(),
              Has("computes nothing: 27.3% on average", "Formula: (p-1)/(m+p-1)"));
  EXPECT_THAT(ExplainProgram("zb-h1", 4, 8).value(), Has("computes nothing: 11.1% on average"));
  EXPECT_THAT(ExplainProgram("zb-h1", 4, 2).value(), Has("does not hold for these numbers"));
  EXPECT_THAT(ExplainProgram("1f1b", 4096, 8).value(), Lacks("rank 0"));
}

TEST(ExplainProgramTest, StatesStalenessAndVersionsWithoutAFlush) {
  EXPECT_THAT(InOneLine(ExplainProgram("pipedream", 3, 8).value()),
              Has("micro-batches per update: 1, updates per step: 8", "at most 2, 1, 0 updates old",
                  "3, 2, 1 versions are kept", "in theory: p-1-r, on rank r", "Formula: (p-1)/(m+p-1)"));
  EXPECT_THAT(InOneLine(ExplainProgram("pipedream-2bw", 4, 8).value()),
              Has("micro-batches per update: 4, updates per step: 2", "at most 1, 1, 1, 1 updates old",
                  "2, 2, 2, 2 versions are kept"));
  EXPECT_THAT(ExplainProgram("1f1b", 3, 8).value(), Lacks("versions"));
}

TEST(ExplainProgramTest, LinesAreNarrowForManyWorkersInBothLanguages) {
  for (const Language language : {Language::kEnglish, Language::kChinese}) {
    const ScopedLanguage scope(language);
    for (const int ranks : {1, 2, 4, 16, 64}) {
      for (const ProgramRow& row : ProgramRows()) {
        const std::string name = row.takes_chunks ? absl::StrCat(row.name, ":2") : row.name;
        ExpectLinesFit(ExplainProgram(name, ranks, 8).value());
      }
    }
  }
}

}  // namespace
}  // namespace psring
