#include "ring_worker/schedules/lowered_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ring_worker/schedules/schedule_traffic.h"
#include "tests/ring_worker/schedules/schedule_table.h"

namespace psring {
namespace {

LoweredSchedule Lower(const std::string& algorithm, int ranks, int rank, bool whole) {
  const auto schedule = MakeAllReduce(algorithm, ranks);
  return LowerSchedule(*schedule, rank, MaxRounds(*schedule), whole);
}

TEST(LoweredSchedule, RanksThatSendToAllBeginWithDifferentPeers) {
  for (const int ranks : {2, 3, 5}) {
    for (const bool whole : {false, true}) {
      const size_t rounds = Lower("direct", ranks, 0, whole).rounds.size();
      for (size_t round = 0; round < rounds; ++round) {
        for (int place = 0; place < ranks - 1; ++place) {
          std::set<int> peers;
          for (int rank = 0; rank < ranks; ++rank) {
            const LoweredSchedule lowered = Lower("direct", ranks, rank, whole);
            peers.insert(lowered.rounds[round].sends[static_cast<size_t>(place)].peer);
          }
          EXPECT_EQ(static_cast<int>(peers.size()), ranks) << "round " << round << ", place " << place;
        }
      }
    }
  }
}

TEST(LoweredSchedule, SendsToOnePeerAreInTheOrderOfChunks) {
  for (const char* const algorithm : {"ring", "star", "direct", "halving-doubling", "double-binary-tree"}) {
    for (const int ranks : {2, 3, 6}) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const LoweredRound& round : Lower(algorithm, ranks, rank, /*whole=*/false).rounds) {
          std::map<int, int> last;  // by peer
          for (const LoweredSend& send : round.sends) {
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

// Memory, not the numbers of rounds, decides what waits for what: compared with the definition, chunk by
// chunk.
TEST(LoweredSchedule, ARoundDependsOnTheLastOneThatTouchesItsMemory) {
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce)) {
    for (const int ranks : {2, 3, 6, 8}) {
      const auto schedule = MakeAllReduce(algorithm, ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        const size_t chunks = static_cast<size_t>(schedule->chunks());
        std::vector<int> read(chunks, LoweredSchedule::kNoRound), written = read, expected;
        std::vector<Transfer> transfers;
        for (int round = 0; round < schedule->rounds(rank); ++round) {
          schedule->Round(rank, round, transfers);
          std::vector<int> next_read = read, next_written = written;
          int after = transfers.empty() ? LoweredSchedule::kNoTransfers : LoweredSchedule::kNoRound;
          for (const Transfer& t : transfers) {
            const bool send = t.kind == TransferKind::kSend;
            for (int chunk = t.first_chunk; chunk < t.first_chunk + t.chunk_count; ++chunk) {
              const size_t c = static_cast<size_t>(chunk);
              after = std::max({after, written[c], send ? after : read[c]});
              (send ? next_read : next_written)[c] = round;
            }
          }
          read = next_read;
          written = next_written;
          expected.push_back(after);
        }
        for (const bool whole : {false, true})
          EXPECT_EQ(Lower(algorithm, ranks, rank, whole).after, expected) << algorithm << ", rank " << rank;
      }
    }
  }
}

// The input is in other memory than the result, so no send needs a copy and no round waits for another.
TEST(LoweredSchedule, AnAllToAllSendsItsInput) {
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllToAll)) {
    for (const int ranks : {2, 3, 8}) {
      const auto schedule = Make(algorithm, Collective::kAllToAll, {.ranks = ranks});
      for (const bool whole : {false, true}) {
        const LoweredSchedule lowered = LowerSchedule(*schedule, 1, MaxRounds(*schedule), whole);
        for (const LoweredRound& round : lowered.rounds) {
          EXPECT_EQ(round.sends.size(), round.receives.size());
          for (const LoweredSend& send : round.sends) {
            EXPECT_FALSE(send.copy);
            EXPECT_TRUE(send.fresh);
            EXPECT_EQ((1 + send.first_chunk) % ranks, send.peer);
          }
        }
        for (const int after : lowered.after) EXPECT_EQ(after, LoweredSchedule::kNoRound);
        EXPECT_EQ(lowered.written[0], 0) << "a rank keeps its own block";
      }
    }
  }
}

bool Overlap(int first, int count, int other_first, int other_count) {
  return first < other_first + other_count && other_first < first + count;
}

template <typename Transfers>
bool Touches(const Transfers& transfers, int first, int count) {
  return std::any_of(transfers.begin(), transfers.end(), [&](const auto& other) {
    return Overlap(first, count, other.first_chunk, other.chunk_count);
  });
}

// The peer writes a reply into memory that this rank has named, possibly as soon as it has read what was
// sent.
TEST(MarkReplies, NothingElseTouchesTheMemoryOfAReply) {
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce)) {
    for (const int ranks : {2, 3, 4, 6, 8}) {
      for (const bool whole : {false, true}) {
        std::vector<LoweredSchedule> all;
        for (int rank = 0; rank < ranks; ++rank)
          MarkReplies(all.emplace_back(Lower(algorithm, ranks, rank, whole)), rank);
        for (int rank = 0; rank < ranks; ++rank) {
          const LoweredSchedule& lowered = all[rank];
          for (int round = 0; round <= lowered.last_round; ++round) {
            for (const LoweredSend& send : lowered.rounds[round].sends) {
              if (send.reply_round < 0) continue;
              const auto& [peer, first, count, copy, fresh, reply] = send;
              SCOPED_TRACE(testing::Message()
                           << algorithm << ", rank " << rank << " of " << ranks << ", round " << round);
              ASSERT_GT(reply, round);
              EXPECT_FALSE(copy);
              EXPECT_EQ(std::ranges::count_if(lowered.rounds[round].sends,
                                              [&](const LoweredSend& other) {
                                                return Overlap(first, count, other.first_chunk,
                                                               other.chunk_count);
                                              }),
                        1);
              for (int r = round + 1; r <= reply; ++r) {
                EXPECT_FALSE(Touches(lowered.rounds[r].sends, first, count));
                EXPECT_EQ(Touches(lowered.rounds[r].receives, first, count), r == reply);
              }
              EXPECT_TRUE(std::ranges::any_of(all[peer].rounds[reply].sends, [&](const LoweredSend& answer) {
                return answer.peer == rank && answer.first_chunk == first && answer.chunk_count == count;
              }));
            }
            for (const LoweredReceive& receive : lowered.rounds[round].receives) {
              if (!receive.replies) continue;
              std::set<int> unanswered(receive.sources.begin(), receive.sources.end());
              unanswered.erase(rank);
              for (int r = round + 1; !unanswered.empty(); ++r) {
                ASSERT_LE(r, lowered.last_round);
                for (const LoweredSend& send : lowered.rounds[r].sends) {
                  if (send.first_chunk == receive.first_chunk && send.chunk_count == receive.chunk_count)
                    unanswered.erase(send.peer);
                }
                EXPECT_TRUE(unanswered.empty() ||
                            !Touches(lowered.rounds[r].receives, receive.first_chunk, receive.chunk_count));
              }
            }
          }
        }
      }
    }
  }
}

TEST(MarkReplies, FindsTheSumsThatReturnToTheirSources) {
  const auto replies = [](const std::string& algorithm, int ranks) {
    LoweredSchedule lowered = Lower(algorithm, ranks, 1, /*whole=*/false);
    MarkReplies(lowered, 1);
    std::pair<int, int> found = {0, 0};
    for (const LoweredRound& round : lowered.rounds) {
      for (const LoweredSend& send : round.sends) found.first += send.reply_round >= 0;
      for (const LoweredReceive& receive : round.receives) found.second += receive.replies;
    }
    return found;
  };
  EXPECT_EQ(replies("direct", 4), std::pair(3, 1));
  EXPECT_EQ(replies("ring", 2), std::pair(1, 1));
  EXPECT_EQ(replies("ring", 3), std::pair(0, 0)) << "a sum is passed to the next rank";
  EXPECT_EQ(replies("star", 4), std::pair(1, 0));
  EXPECT_EQ(replies("one-shot", 2), std::pair(0, 0));
}

TEST(LoweredSchedule, AllSlabsPassAllRoundsAndOldSlabsStartFirst) {
  const std::vector<int> after = {LoweredSchedule::kNoRound, LoweredSchedule::kNoTransfers, 0, 2};
  struct Started {
    int round;
    int64_t slab;
  };
  for (const int64_t depth : {1, 2, 3}) {
    for (const int64_t slabs : {1, 2, 7}) {
      std::vector<Started> in_flight;
      std::set<std::pair<int, int64_t>> started, finished;
      for (StartOrder order(after, slabs, depth); !order.done(); order.Advance()) {
        for (size_t count = order.MustFinish(in_flight); count > 0; --count) {
          finished.emplace(in_flight.front().round, in_flight.front().slab);
          in_flight.erase(in_flight.begin());
        }
        const int needs = after[static_cast<size_t>(order.round())];
        EXPECT_TRUE(needs < 0 || finished.contains({needs, order.slab()}));
        for (const Started& other : in_flight)
          EXPECT_TRUE(other.round >= order.round() || other.slab > order.slab()) << "an old slab first";
        in_flight.push_back({order.round(), order.slab()});
        EXPECT_LE(static_cast<int64_t>(in_flight.size()), 2 * depth);
        EXPECT_TRUE(started.emplace(order.round(), order.slab()).second) << "each once";
      }
      EXPECT_EQ(static_cast<int64_t>(started.size()), 3 * slabs) << "all but the empty round";
    }
  }
}

TEST(ScheduleTraffic, ARoundTakesAsLongAsItsBusiestLink) {
  const auto of = [](const std::string& algorithm, int ranks) {
    return TrafficOf(*MakeAllReduce(algorithm, ranks));
  };
  for (const int n : {1, 2, 3, 7, 16}) {
    EXPECT_EQ(of("ring", n).InSequence(), 2.0 * (n - 1) / n) << n;
    EXPECT_EQ(of("direct", n).InSequence(), 2.0 * (n - 1) / n) << n;
    EXPECT_EQ(of("star", n).InSequence(), 2.0 * (n - 1)) << n;
    EXPECT_EQ(of("one-shot", n).InSequence(), n - 1) << n;
    EXPECT_EQ(of("star", n).sent[0], n - 1) << n;
    EXPECT_DOUBLE_EQ(of("star", n).MeanSent(), 2.0 * (n - 1) / n) << n;
  }
  EXPECT_EQ(of("halving-doubling", 8).InSequence(), 2.0 * 7 / 8);
  EXPECT_EQ(of("halving-doubling", 3).InSequence(), 3) << "folds: 2(P-1)/P, and 2 more";
}

}  // namespace
}  // namespace psring
