#include "ring_worker/schedules/schedule.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "ring_worker/schedules/default_algorithm.h"
#include "tests/ring_worker/schedules/schedule_table.h"

namespace psring {
namespace {

std::vector<Transfer> RoundOf(const Schedule& schedule, int rank, int round) {
  std::vector<Transfer> transfers;
  schedule.Round(rank, round, transfers);
  return transfers;
}

size_t ElementsSent(const Schedule& schedule, int rank, size_t count) {
  size_t sent = 0;
  for (int round = 0; round < schedule.rounds(rank); ++round) {
    for (const Transfer& t : RoundOf(schedule, rank, round)) {
      if (t.kind != TransferKind::kSend) continue;
      sent += ChunkBounds(count, schedule.chunks(), t.first_chunk, t.chunk_count).length;
    }
  }
  return sent;
}

TEST(DefaultAlgorithm, SuitsSizeRanksAndMemory) {
  const auto all_reduce = [](size_t bytes, int ranks, bool share_memory) {
    return std::string(DefaultAlgorithm(Collective::kAllReduce, bytes, ranks, share_memory));
  };
  EXPECT_EQ(all_reduce(0, 4096, true), "one-shot") << "a barrier";
  EXPECT_EQ(all_reduce(16 << 10, 2, true), "one-shot");
  EXPECT_EQ(all_reduce(16 << 10, 4, true), "direct");
  EXPECT_EQ(all_reduce(SIZE_MAX / 4, 4, true), "direct");
  EXPECT_EQ(all_reduce(8 << 10, 4, false), "one-shot");
  EXPECT_EQ(all_reduce(128 << 10, 4, false), "halving-doubling");
  EXPECT_EQ(all_reduce(128 << 10, 3, false), "ring") << "halving-doubling has partners of powers of two";
  EXPECT_EQ(all_reduce(1 << 20, 4, false), "ring");
  for (const Collective collective : kCollectives) {
    for (const bool share_memory : {false, true}) {
      for (const size_t bytes : {size_t{4} << 10, size_t{1} << 30}) {
        const ScheduleRow* const row = FindSchedule(DefaultAlgorithm(collective, bytes, 5, share_memory));
        ASSERT_NE(row, nullptr);
        EXPECT_TRUE(row->offers(collective)) << row->name << " " << Name(collective);
      }
    }
  }
}

TEST(ChunkBoundsTest, ChunksCoverTheBufferOnceAndDifferByAtMostOneElement) {
  for (size_t count : {0, 1, 2, 3, 7, 16, 1000, 1048579}) {
    for (int chunks = 1; chunks <= 17; ++chunks) {
      size_t next = 0;
      for (int c = 0; c < chunks; ++c) {
        const ChunkRange range = ChunkBounds(count, chunks, c);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.length, count / chunks);
        EXPECT_LE(range.length, count / chunks + 1);
        next += range.length;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(ChunkBoundsTest, SeveralChunksAreTheUnionOfTheirParts) {
  const ChunkRange all = ChunkBounds(1001, 7, 2, 3);
  EXPECT_EQ(all.first, ChunkBounds(1001, 7, 2).first);
  EXPECT_EQ(all.first + all.length, ChunkBounds(1001, 7, 5).first);
}

TEST(ChunkBoundsTest, HugeBuffersDoNotOverflow) {
  const size_t count = SIZE_MAX / 2;
  const ChunkRange last = ChunkBounds(count, 1000, 999);
  EXPECT_EQ(last.first + last.length, count);
}

TEST(RingTest, EveryRankSendsToTheRightAndReceivesFromTheLeftInEachRound) {
  const auto ring = MakeAllReduce("ring", 5);
  for (int rank = 0; rank < 5; ++rank) {
    ASSERT_EQ(ring->rounds(rank), 8);
    for (int round = 0; round < 8; ++round) {
      const std::vector<Transfer> transfers = RoundOf(*ring, rank, round);
      ASSERT_EQ(transfers.size(), 2);
      EXPECT_EQ(transfers[0].kind, TransferKind::kSend);
      EXPECT_EQ(transfers[0].peer, (rank + 1) % 5);
      EXPECT_EQ(transfers[1].kind, round < 4 ? TransferKind::kReceiveAdd : TransferKind::kReceive);
      EXPECT_EQ(transfers[1].peer, (rank + 4) % 5);
      EXPECT_EQ(transfers[0].chunk_count, 1);
      EXPECT_EQ(transfers[1].chunk_count, 1);
    }
  }
}

TEST(RingTest, ARankForwardsWhatItHasJustReceived) {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    const auto ring = Make("ring", collective, {.ranks = 7});
    for (int rank = 0; rank < 7; ++rank) {
      for (int round = 1; round < ring->rounds(rank); ++round)
        EXPECT_EQ(RoundOf(*ring, rank, round - 1)[1].first_chunk, RoundOf(*ring, rank, round)[0].first_chunk);
    }
  }
}

TEST(RingTest, ABroadcastIsAChainFromItsRoot) {
  const auto chain = Make("ring", Collective::kBroadcast, {.ranks = 4, .root = 2});
  EXPECT_EQ(RoundOf(*chain, 2, 0), (std::vector<Transfer>{{TransferKind::kSend, 3, 0, 1}}));
  EXPECT_EQ(RoundOf(*chain, 0, 1), (std::vector<Transfer>{{TransferKind::kReceive, 3, 0, 1}}));
  EXPECT_EQ(RoundOf(*chain, 0, 2), (std::vector<Transfer>{{TransferKind::kSend, 1, 0, 1}}));
  EXPECT_EQ(ElementsSent(*chain, 1, 100), 0);
}

TEST(StarTest, RankZeroAddsInRankOrder) {
  const auto star = MakeAllReduce("star", 4);
  EXPECT_EQ(RoundOf(*star, 0, 0), (std::vector<Transfer>{{TransferKind::kReceiveAdd, 1, 0, 1},
                                                         {TransferKind::kReceiveAdd, 2, 0, 1},
                                                         {TransferKind::kReceiveAdd, 3, 0, 1}}));
}

TEST(DirectTest, AnOwnerAddsTheOthersInRankOrder) {
  const auto direct = MakeAllReduce("direct", 4);
  EXPECT_EQ(RoundOf(*direct, 2, 0), (std::vector<Transfer>{{TransferKind::kSend, 3, 3, 1},
                                                           {TransferKind::kSend, 0, 0, 1},
                                                           {TransferKind::kSend, 1, 1, 1},
                                                           {TransferKind::kReceiveAdd, 0, 2, 1},
                                                           {TransferKind::kReceiveAdd, 1, 2, 1},
                                                           {TransferKind::kReceiveAdd, 3, 2, 1}}));
}

TEST(PairwiseTest, EveryRankSendsOneBlockAndReceivesOnePerRound) {
  const auto pairwise = Make("pairwise", Collective::kAllToAll, {.ranks = 5});
  EXPECT_TRUE(pairwise->keeps_input());
  ASSERT_EQ(pairwise->rounds(3), 4);
  EXPECT_EQ(RoundOf(*pairwise, 3, 0),
            (std::vector<Transfer>{{TransferKind::kSend, 4, 1, 1}, {TransferKind::kReceive, 2, 1, 1}}));
  EXPECT_EQ(RoundOf(*pairwise, 3, 2),
            (std::vector<Transfer>{{TransferKind::kSend, 1, 3, 1}, {TransferKind::kReceive, 0, 3, 1}}));
}

TEST(DirectTest, AnAllToAllIsAllExchangesOfPairwiseInOneRound) {
  for (const int ranks : {2, 3, 8}) {
    const auto direct = Make("direct", Collective::kAllToAll, {.ranks = ranks});
    const auto pairwise = Make("pairwise", Collective::kAllToAll, {.ranks = ranks});
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(direct->rounds(rank), 1);
      std::vector<Transfer> all;
      for (int round = 0; round < pairwise->rounds(rank); ++round) {
        for (const Transfer& transfer : RoundOf(*pairwise, rank, round)) all.push_back(transfer);
      }
      EXPECT_EQ(RoundOf(*direct, rank, 0), all);
      EXPECT_EQ(ElementsSent(*direct, rank, 100 * static_cast<size_t>(ranks)), 100u * (ranks - 1));
    }
  }
}

TEST(OneShotTest, EveryRankAddsInRankOrder) {
  const auto one_shot = MakeAllReduce("one-shot", 3);
  EXPECT_TRUE(one_shot->copies_sends());
  EXPECT_EQ(RoundOf(*one_shot, 0, 0), (std::vector<Transfer>{{TransferKind::kSend, 1, 0, 1},
                                                             {TransferKind::kSend, 2, 0, 1},
                                                             {TransferKind::kReceiveAdd, 1, 0, 1},
                                                             {TransferKind::kReceiveAdd, 2, 0, 1}}));
  EXPECT_EQ(RoundOf(*one_shot, 1, 0), (std::vector<Transfer>{{TransferKind::kSend, 2, 0, 1},
                                                             {TransferKind::kSend, 0, 0, 1},
                                                             {TransferKind::kReceive, 0, 0, 1},
                                                             {TransferKind::kReceiveAdd, 1, 0, 1},
                                                             {TransferKind::kReceiveAdd, 2, 0, 1}}));
}

TEST(OneShotTest, HasOneRound) {
  for (Collective collective : kCollectives) {
    if (collective == Collective::kAllToAll) continue;
    for (int ranks = 2; ranks <= 9; ++ranks)
      EXPECT_EQ(Make("one-shot", collective, {.ranks = ranks})->rounds(0), 1);
  }
}

TEST(DoubleBinaryTreeTest, NoRankButTheRootHasChildrenInBothTrees) {
  for (int ranks = 2; ranks <= 64; ++ranks) {
    for (int root : {0, ranks / 2}) {
      const auto trees = Make("double-binary-tree", Collective::kBroadcast, {.ranks = ranks, .root = root});
      for (int rank = 0; rank < ranks; ++rank) {
        std::set<int> trees_sent_down;
        int children = 0;
        for (int round = 0; round < trees->rounds(rank); ++round) {
          for (const Transfer& t : RoundOf(*trees, rank, round)) {
            if (t.kind != TransferKind::kSend) continue;
            trees_sent_down.insert(t.first_chunk);
            ++children;
          }
        }
        EXPECT_EQ(children <= 2 && (rank == root || trees_sent_down.size() <= 1), true)
            << ranks << " " << rank;
      }
    }
  }
}

TEST(DoubleBinaryTreeTest, TheTreesHaveMinimalHeight) {
  for (const auto& [ranks, levels] :
       {std::pair(2, 1), {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}, {16, 4}, {64, 6}}) {
    EXPECT_EQ(Make("double-binary-tree", Collective::kBroadcast, {.ranks = ranks})->rounds(0), levels);
    EXPECT_EQ(MakeAllReduce("double-binary-tree", ranks)->rounds(0), 2 * levels);
  }
}

TEST(HierarchicalTest, WithOneRankPerNodeItIsTheRingAndWithOneNodeItIsDirect) {
  for (int ranks : {2, 5, 8}) {
    for (const auto& [per_node, algorithm] : {std::pair(1, "ring"), {ranks, "direct"}}) {
      const auto hierarchical =
          Make("hierarchical", Collective::kAllReduce, {.ranks = ranks, .ranks_per_node = per_node});
      const auto same = MakeAllReduce(algorithm, ranks);
      ASSERT_EQ(hierarchical->rounds(0), same->rounds(0));
      for (int rank = 0; rank < ranks; ++rank) {
        for (int round = 0; round < same->rounds(rank); ++round)
          EXPECT_EQ(RoundOf(*hierarchical, rank, round), RoundOf(*same, rank, round));
      }
    }
  }
}

TEST(BytesTest, RingDirectAndHalvingDoublingSendTheMinimum) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const size_t count = size_t(ranks) * 120;
    for (const char* algorithm : {"ring", "direct", "halving-doubling"}) {
      if (algorithm == std::string("halving-doubling") && (ranks & (ranks - 1)) != 0) continue;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto sent = [&](Collective collective) {
          return ElementsSent(*Make(algorithm, collective, {.ranks = ranks}), rank, count);
        };
        EXPECT_EQ(sent(Collective::kAllReduce), 2 * (count - 120)) << algorithm << " " << ranks;
        EXPECT_EQ(sent(Collective::kReduceScatter), count - 120);
        EXPECT_EQ(sent(Collective::kAllGather), count - 120);
      }
    }
  }
}

TEST(BytesTest, HalvingDoublingNeedsTwoMoreRoundsForOtherNumbersOfRanks) {
  for (const auto& [ranks, rounds] :
       {std::pair(2, 2), {3, 4}, {4, 4}, {5, 6}, {6, 6}, {7, 6}, {8, 6}, {64, 12}}) {
    EXPECT_EQ(MakeAllReduce("halving-doubling", ranks)->rounds(0), rounds);
  }
  const auto folded = MakeAllReduce("halving-doubling", 5);
  EXPECT_EQ(ElementsSent(*folded, 0, 400), 400);        // rank 0 sends everything to rank 1
  EXPECT_EQ(ElementsSent(*folded, 1, 400), 600 + 400);  // 2 * 3/4, and the result back to rank 0
  EXPECT_EQ(ElementsSent(*folded, 2, 400), 600);
}

TEST(BytesTest, DoubleBinaryTreeSendsAtMostTwiceTheBufferAndOnAverageLikeARing) {
  for (int ranks = 2; ranks <= 64; ++ranks) {
    const auto trees = MakeAllReduce("double-binary-tree", ranks);
    size_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const size_t sent = ElementsSent(*trees, rank, 100);
      EXPECT_LE(sent, 200) << rank << " of " << ranks;
      all += sent;
    }
    EXPECT_EQ(all, 2 * size_t(ranks - 1) * 100);
  }
}

TEST(BytesTest, HierarchicalSendsAShareOfTheBufferToOtherNodes) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const size_t count = size_t(ranks) * 10;
    for (int per_node = 1; per_node <= ranks; ++per_node) {
      if (ranks % per_node != 0) continue;
      SCOPED_TRACE(absl::StrCat(ranks, " ranks on nodes of ", per_node));
      const int nodes = ranks / per_node;
      const auto schedule = MakeAllReduce(absl::StrCat("hierarchical:", per_node), ranks);
      EXPECT_EQ(schedule->rounds(0), (per_node > 1 ? 2 : 0) + 2 * (nodes - 1));
      std::vector<size_t> sent(nodes), received(nodes);  // over the link of each node
      for (int rank = 0; rank < ranks; ++rank) {
        const int node = rank / per_node;
        size_t within = 0;
        for (int round = 0; round < schedule->rounds(rank); ++round) {
          for (const Transfer& t : RoundOf(*schedule, rank, round)) {
            const size_t length = ChunkBounds(count, ranks, t.first_chunk, t.chunk_count).length;
            const bool sends = t.kind == TransferKind::kSend;
            if (t.peer / per_node != node) (sends ? sent : received)[node] += length;
            if (t.peer / per_node == node && sends) within += length;
          }
        }
        EXPECT_EQ(within, 2 * count * (per_node - 1) / per_node);
      }
      // As the ranks of a ring that are nodes.
      EXPECT_EQ(sent, std::vector<size_t>(nodes, 2 * count * (nodes - 1) / nodes));
      EXPECT_EQ(received, sent);
    }
  }
}

TEST(ScheduleTest, EveryAlgorithmOffersAllReduceAndMostOfferAllCollectives) {
  const std::vector<std::string> all = {
      "ring", "star", "direct", "one-shot", "halving-doubling", "double-binary-tree", "hierarchical"};
  const std::vector<std::string> four(all.begin(), all.begin() + 5);
  EXPECT_EQ(AlgorithmsFor(Collective::kAllReduce), all);
  EXPECT_EQ(AlgorithmsFor(Collective::kReduceScatter), four);
  EXPECT_EQ(AlgorithmsFor(Collective::kAllGather), four);
  EXPECT_EQ(AlgorithmsFor(Collective::kBroadcast), std::vector<std::string>(all.begin(), all.begin() + 6));
  EXPECT_EQ(AlgorithmsFor(Collective::kAllToAll), (std::vector<std::string>{"direct", "pairwise"}));
}

TEST(ScheduleTest, OneRankHasNothingToDo) {
  for (Collective collective : kCollectives) {
    for (const std::string& algorithm : AlgorithmsFor(collective))
      EXPECT_EQ(Make(algorithm, collective, {.ranks = 1})->rounds(0), 0) << algorithm;
  }
}

TEST(ScheduleTest, OnlyOneShotAllReduceReceivesWhereItSends) {
  for (Collective collective : kCollectives) {
    for (const std::string& algorithm : AlgorithmsFor(collective))
      EXPECT_EQ(Make(algorithm, collective, {.ranks = 4})->copies_sends(),
                algorithm == "one-shot" && collective == Collective::kAllReduce)
          << algorithm;
  }
}

TEST(ScheduleTest, RanksOfOneClassMoveTheSameAmountInEveryRound) {
  for (Collective collective : kCollectives) {
    for (const std::string& algorithm : AlgorithmsFor(collective)) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        const auto schedule =
            Make(algorithm, collective,
                 {.ranks = ranks, .ranks_per_node = ranks % 3 == 0 ? 3 : 1, .root = ranks / 2});
        const auto moved = [&](int rank) {
          std::vector<std::pair<int, int>> rounds;
          for (int round = 0; round < schedule->rounds(rank); ++round) {
            rounds.emplace_back();
            for (const Transfer& t : RoundOf(*schedule, rank, round)) {
              if (t.peer == rank) continue;
              (t.kind == TransferKind::kSend ? rounds.back().first : rounds.back().second) += t.chunk_count;
            }
          }
          return rounds;
        };
        for (int a = 0; a < ranks; ++a) {
          for (int b = 0; b < a; ++b) {
            if (schedule->symmetry_class(a) != schedule->symmetry_class(b)) continue;
            EXPECT_EQ(moved(a), moved(b)) << algorithm << " " << Name(collective) << " " << a << " " << b;
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, AnUnknownNameListsTheKnownOnes) {
  EXPECT_EQ(MakeSchedule("rign", Collective::kAllReduce, {.ranks = 4}).status(),
            absl::NotFoundError("unknown algorithm 'rign'; use one of ring, star, direct, one-shot, "
                                "halving-doubling, double-binary-tree, hierarchical"));
  EXPECT_EQ(ParseCollective("all_to_some").status(),
            absl::NotFoundError("unknown collective 'all_to_some'; use one of all_reduce, reduce_scatter, "
                                "all_gather, broadcast, all_to_all"));
  for (Collective collective : kCollectives) EXPECT_EQ(ParseCollective(Name(collective)).value(), collective);
}

TEST(ScheduleTest, ANameMayContainTheRanksPerNode) {
  const auto pairs = Make("hierarchical", Collective::kAllReduce, {.ranks = 6, .ranks_per_node = 2});
  const auto named = Make("hierarchical:2", Collective::kAllReduce, {.ranks = 6, .ranks_per_node = 3});
  ASSERT_EQ(named->rounds(0), pairs->rounds(0));
  for (int rank = 0; rank < 6; ++rank) {
    for (int round = 0; round < pairs->rounds(rank); ++round)
      EXPECT_EQ(RoundOf(*named, rank, round), RoundOf(*pairs, rank, round));
  }
  EXPECT_EQ(MakeAllReduce("hierarchical:2", 1)->rounds(0), 0);
  EXPECT_EQ(MakeSchedule("hierarchical:4", Collective::kAllReduce, {.ranks = 6}).status(),
            absl::InvalidArgumentError("hierarchical:4 needs a multiple of 4 ranks, not 6"));
  for (const char* wrong :
       {"hierarchical:0", "hierarchical:-2", "hierarchical:", "hierarchical:x", "ring:2", "hierarchical:02",
        "hierarchical:+2", "hierarchical: 2", "hierarchical:2x", "hierarchical:999999999999"}) {
    EXPECT_EQ(FindSchedule(wrong), nullptr) << wrong;
    EXPECT_EQ(BaseAlgorithm(wrong), wrong);
    EXPECT_EQ(MakeSchedule(wrong, Collective::kAllReduce, {.ranks = 4}).status().code(),
              absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(BaseAlgorithm("hierarchical:2"), "hierarchical");
  EXPECT_TRUE(NeedsRanksPerNode("hierarchical"));
  for (const char* complete : {"hierarchical:2", "ring", "unknown"})
    EXPECT_FALSE(NeedsRanksPerNode(complete));
}

TEST(ScheduleTest, AnUnofferedCollectiveListsTheAlgorithmsThatOfferIt) {
  EXPECT_EQ(
      MakeSchedule("hierarchical", Collective::kAllGather, {.ranks = 4}).status(),
      absl::InvalidArgumentError(
          "hierarchical offers no all_gather; these do: ring, star, direct, one-shot, halving-doubling"));
}

TEST(ScheduleTest, InvalidShapesAreRejected) {
  for (const ScheduleShape& shape : {ScheduleShape{.ranks = 0},
                                     {.ranks = 4, .ranks_per_node = 3},
                                     {.ranks = 4, .ranks_per_node = 0},
                                     {.ranks = 4, .root = 4},
                                     {.ranks = 4, .root = -1}}) {
    EXPECT_EQ(MakeSchedule("ring", Collective::kAllReduce, shape).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace psring
