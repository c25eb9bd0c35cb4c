#include "experiments/report/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "experiments/report/playback.h"

namespace psring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string TextOf(const std::string& algorithm, int ranks, const std::string& collective = "all_reduce") {
  return Explain({.algorithm = algorithm, .collective = collective, .shape = {.ranks = ranks}}).value();
}

TEST(ExplainTest, ARingsRoundsSayWhoSendsWhatAndWhatTheSumsBecome) {
  const std::string text = TextOf("ring", 4);
  EXPECT_THAT(text, HasSubstr("round 1 of 6\n   3 -> 0   chunk 3       added to what is there; then 0+3\n"));
  EXPECT_THAT(text, HasSubstr("round 4 of 6\n   3 -> 0   chunk 0       put in its place; then all\n"));
  EXPECT_THAT(text, HasSubstr("sent so far: each 0.25 M (1.049 MB)"));
  EXPECT_THAT(text, HasSubstr("sent so far: each 1.5 M (6.291 MB)"));
  EXPECT_THAT(text, HasSubstr("At the end every rank has what was promised."));
}

TEST(ExplainTest, CountsFromTheRoundsAreTheTermsOfTheTheory) {
  EXPECT_THAT(TextOf("ring", 4),
              HasSubstr("6 a + 1.5 M/B + 0.75 M g\n  theory                       2(N-1) a"));
  EXPECT_THAT(TextOf("star", 4), HasSubstr("2 a + 6 M/B + 3 M g"));
  EXPECT_THAT(TextOf("direct", 4), HasSubstr("2 a + 1.5 M/B + 0.75 M g"));
  EXPECT_THAT(TextOf("halving-doubling", 4), HasSubstr("4 a + 1.5 M/B + 0.75 M g"));
}

TEST(ExplainTest, RanksThatSendDifferentlyAreListed) {
  EXPECT_THAT(TextOf("star", 3), HasSubstr("sent so far: rank 0 2 M, rank 1 1 M, rank 2 1 M"));
}

TEST(ExplainTest, EverySchedulePlaysEveryCollectiveToItsPromise) {
  for (Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather, Collective::kBroadcast}) {
    for (const std::string& algorithm : AlgorithmsFor(collective)) {
      for (int ranks : {1, 2, 3, 4, 5, 8, 64}) {
        const std::string text = TextOf(algorithm, ranks, Name(collective));
        EXPECT_THAT(text, HasSubstr("every rank has what was promised")) << algorithm << " " << ranks;
      }
    }
  }
}

TEST(ExplainTest, ARoundThatIsLeftOutBreaksThePromise) {
  const auto ring = MakeSchedule("ring", Collective::kAllReduce, {.ranks = 3}).value();
  Playback playback(*ring, Collective::kAllReduce);
  while (playback.next_round() < playback.rounds() - 1) playback.Step();
  EXPECT_FALSE(playback.Fulfilled());
  playback.Step();
  EXPECT_TRUE(playback.Fulfilled());
}

TEST(ExplainTest, LinesFitAPage) {
  for (const std::string& line : {TextOf("ring", 16), TextOf("direct", 8)}) {
    size_t begin = 0;
    for (size_t end; (end = line.find('\n', begin)) != std::string::npos; begin = end + 1) {
      EXPECT_LE(end - begin, 110) << line.substr(begin, end - begin);
    }
  }
}

TEST(ExplainTest, WrongNamesListWhatThereIs) {
  const auto message = [](const std::string& algorithm, const std::string& collective, int ranks) {
    return std::string(Explain({.algorithm = algorithm, .collective = collective, .shape = {.ranks = ranks}})
                           .status()
                           .message());
  };
  EXPECT_THAT(message("rign", "all_reduce", 4), HasSubstr("there are: ring, star, direct, one-shot"));
  EXPECT_THAT(message("ring", "reduce", 4), HasSubstr("there are: all_reduce, reduce_scatter"));
  EXPECT_THAT(message("double-binary-tree", "all_gather", 4),
              HasSubstr("offers no all_gather; these do: ring"));
  EXPECT_THAT(message("ring", "all_reduce", 65), HasSubstr("at most 64 workers"));
  EXPECT_THAT(message("ring", "all_reduce", 0), HasSubstr("at least one"));
}

}  // namespace
}  // namespace psring
