#include "ring_worker/groups/program.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace psring {
namespace {

Program ProgramOf(const std::string& algorithm, int ranks, int rank, bool whole) {
  const auto schedule = MakeSchedule(algorithm, Collective::kAllReduce, {.ranks = ranks});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return MakeProgram(**schedule, rank, whole);
}

TEST(Program, RanksThatSendToAllBeginWithDifferentPeers) {
  for (const int ranks : {2, 3, 5}) {
    for (const bool whole : {false, true}) {
      const size_t rounds = ProgramOf("direct", ranks, 0, whole).rounds.size();
      for (size_t round = 0; round < rounds; ++round) {
        for (int place = 0; place < ranks - 1; ++place) {
          std::set<int> peers;
          for (int rank = 0; rank < ranks; ++rank) {
            const Program program = ProgramOf("direct", ranks, rank, whole);
            peers.insert(program.rounds[round].sends[static_cast<size_t>(place)].peer);
          }
          EXPECT_EQ(static_cast<int>(peers.size()), ranks) << "round " << round << ", place " << place;
        }
      }
    }
  }
}

TEST(Program, SendsToOnePeerAreInTheOrderOfChunks) {
  for (const char* const algorithm : {"ring", "star", "direct", "halving-doubling", "double-binary-tree"}) {
    for (const int ranks : {2, 3, 6}) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const RoundSteps& round : ProgramOf(algorithm, ranks, rank, /*whole=*/false).rounds) {
          std::map<int, int> last;  // by peer
          for (const SendStep& send : round.sends) {
            const auto before = last.find(send.peer);
            if (before != last.end()) {
              EXPECT_LT(before->second, send.first_chunk) << algorithm << " x " << ranks;
            }
            last[send.peer] = send.first_chunk;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace psring
