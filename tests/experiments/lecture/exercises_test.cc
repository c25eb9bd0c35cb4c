// What the programming exercises of the lecture tell students about typical mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "experiments/lecture/checks/checks.h"

namespace psring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A right ring; mistakes change its rounds.
std::vector<RingRound> RightRing(int ranks, int rank) {
  const auto wrap = [ranks](int n) { return (n % ranks + ranks) % ranks; };
  std::vector<RingRound> rounds;
  for (int round = 0; round < 2 * (ranks - 1); ++round) {
    rounds.push_back(
        {wrap(rank + 1), wrap(rank - round), wrap(rank - 1), wrap(rank - 1 - round), round < ranks - 1});
  }
  return rounds;
}

// The result if `mistake(ranks, rank, rounds)` has changed the rounds.
template <typename Mistake>
std::string RingText(const Mistake& mistake) {
  return TapText(CheckRing([&](int ranks, int rank, std::vector<RingRound>& rounds) {
    rounds = RightRing(ranks, rank);
    mistake(ranks, rank, rounds);
  }));
}

TEST(RingExercise, AcceptsARingInEitherNumbering) {
  const auto nothing = [](int, int, std::vector<RingRound>&) {};
  EXPECT_THAT(RingText(nothing), Not(HasSubstr("not ok")));
  // Chunk c of one numbering is chunk -c of the other.
  const std::string mirrored = RingText([](int ranks, int, std::vector<RingRound>& rounds) {
    for (RingRound& round : rounds) {
      round.sent = (ranks - round.sent) % ranks;
      round.received = (ranks - round.received) % ranks;
    }
  });
  EXPECT_THAT(mirrored, Not(HasSubstr("not ok")));
}

TEST(RingExercise, NamesTheRoundInWhichASumIsAddedAgain) {
  const std::string text = RingText([](int, int, std::vector<RingRound>& rounds) {
    for (RingRound& round : rounds) round.adds = true;
  });
  EXPECT_THAT(text,
              HasSubstr("not ok 9 - N=3: after its last round, 3, rank 0 holds rank 0's contribution to "
                        "chunk 0 more than once: in round 2, rank 0 adds chunk 0 from rank 2, and both "
                        "contain rank 0's contribution\n# hint: after N-1 rounds a received chunk is a "
                        "complete sum"));
}

TEST(RingExercise, NamesWhatIsMissingIfOnlyTheFirstPhaseIsThere) {
  const std::string text = RingText(
      [](int ranks, int, std::vector<RingRound>& rounds) { rounds.resize(static_cast<size_t>(ranks - 1)); });
  EXPECT_THAT(text,
              HasSubstr("not ok 10 - N=4: rank 0 has 3 rounds; expected 2(N-1) = 6\n# hint: this is the "
                        "first phase; in N-1 more rounds, the sums go around the ring\n"));
  EXPECT_THAT(text, HasSubstr("ok 11 - N=4: every rank sends to its right neighbor"));
  EXPECT_THAT(text, HasSubstr("not ok 12 - N=4: after its last round, 2, rank 0 holds rank "));
}

TEST(RingExercise, ExplainsNegativeRemainders) {
  const std::string text = RingText([](int ranks, int rank, std::vector<RingRound>& rounds) {
    for (int round = 0; RingRound & one : rounds) {
      one.sent = (rank - round) % ranks;
      ++round;
    }
  });
  EXPECT_THAT(text,
              HasSubstr("sends chunk -1 to rank 1, but there are chunks 0-3\n# hint: in C++, -1 % N is -1"));
}

TEST(RingExercise, NamesSendsThatDoNotMatch) {
  const std::string text = RingText([](int, int, std::vector<RingRound>& rounds) {
    for (RingRound& round : rounds) round.sent = round.received;
  });
  EXPECT_THAT(text, HasSubstr("# hint: a rank sends one chunk and receives another in the same round"));
  const std::string wrong_neighbor = RingText([](int, int rank, std::vector<RingRound>& rounds) {
    if (rank == 2 && rounds.size() > 4) rounds[1].to = 0;
  });
  EXPECT_THAT(wrong_neighbor, HasSubstr("not ok 11 - N=4: rank 2 sends to rank 0 in round 1; expected 3\n"));
}

std::string SspText(const SspSolution& solution) { return TapText(CheckSsp(solution)); }

// The rule, with a bound that is `more` larger; `skips_finished`: nobody waits for finished workers.
SspSolution Rule(int more, bool skips_finished) {
  return [=](const JobState& job, int worker) {
    for (size_t other = 0; other < job.pushed.size(); ++other) {
      if (skips_finished && job.finished[other]) continue;
      if (job.pushed[worker] - job.pushed[other] > job.bound + more) return false;
    }
    return true;
  };
}

TEST(SspExercise, AcceptsTheRule) { EXPECT_THAT(SspText(Rule(0, true)), Not(HasSubstr("not ok"))); }

TEST(SspExercise, NamesAShortestOrderInWhichAWorkerIsTooFarAhead) {
  EXPECT_THAT(
      SspText(Rule(1, true)),
      HasSubstr("not ok 2 - K=1, 2 workers with 4, 4 steps: after pushes of workers 0 0, pushed is {2, "
                "0}; worker 0 continues; expected that it waits: it is 2 ahead of worker 1, and K is 1\n"));
}

TEST(SspExercise, NamesAWorkerThatWaitsTooLong) {
  EXPECT_THAT(
      SspText(Rule(-1, true)),
      HasSubstr("not ok 2 - K=1, 2 workers with 4, 4 steps: after pushes of workers 0, pushed is {1, 0}; "
                "worker 0 waits; expected that it continues: it is 1 ahead of worker 1, and K "
                "is 1\n"));
}

TEST(SspExercise, NamesTheFinishedWorkerThatTheOthersWaitFor) {
  const std::string text = SspText(Rule(0, false));
  EXPECT_THAT(text, HasSubstr("\nok 4 - "));  // all finish together
  EXPECT_THAT(text, HasSubstr("not ok 7 - K=1, 2 workers with 5, 1 steps: "));
  EXPECT_THAT(text, HasSubstr(", finished workers: 1; worker 0 waits; expected that it continues"));
}

}  // namespace
}  // namespace psring
