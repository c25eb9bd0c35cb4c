#include "ring_worker/schedules/schedule_check.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/ring_worker/schedules/schedule_table.h"

namespace psring {
namespace {

TEST(CheckScheduleTest, EveryAlgorithmIsVerifiedFor1To64Ranks) {
  int verified = 0;
  for (Collective collective : kCollectives) {
    for (const std::string& algorithm : AlgorithmsFor(collective)) {
      for (int ranks = 1; ranks <= 64; ++ranks) {
        std::set<int> roots = {0};
        if (collective == Collective::kBroadcast) roots.insert({ranks / 2, ranks - 1});
        for (int root = 0; collective == Collective::kBroadcast && ranks <= 9 && root < ranks; ++root)
          roots.insert(root);
        for (int root : roots) {
          for (int per_node = 1; per_node <= (algorithm == "hierarchical" ? ranks : 1); ++per_node) {
            if (ranks % per_node != 0) continue;
            const auto schedule =
                Make(algorithm, collective, {.ranks = ranks, .ranks_per_node = per_node, .root = root});
            EXPECT_EQ(CheckSchedule(*schedule, collective, root), absl::OkStatus())
                << per_node << " ranks per node";
            ++verified;
          }
        }
      }
    }
  }
  EXPECT_GT(verified, 21 * 64);
}

TEST(CheckScheduleTest, MoreRanksThanAWordHasBitsAreVerified) {
  for (const char* algorithm : {"ring", "halving-doubling", "double-binary-tree"})
    EXPECT_EQ(CheckSchedule(*MakeAllReduce(algorithm, 130), Collective::kAllReduce), absl::OkStatus());
}

TEST(CheckScheduleTest, AScheduleOfOneCollectiveIsNotAcceptedForAnother) {
  for (const ScheduleRow& row : ScheduleRows()) {
    for (int ranks : {2, 3, 4, 8}) {
      for (Collective made : kCollectives) {
        const std::unique_ptr<Schedule> schedule = row.make(made, {.ranks = ranks});
        for (Collective wanted : kCollectives) {
          // An all-reduce is also a reduce-scatter if it has as many chunks as ranks.
          if (schedule == nullptr || wanted == made) continue;
          if (made == Collective::kAllReduce && wanted == Collective::kReduceScatter &&
              schedule->chunks() == ranks)
            continue;
          EXPECT_FALSE(CheckSchedule(*schedule, wanted).ok())
              << row.name << Name(made) << Name(wanted) << ranks;
        }
      }
      const auto broadcast = row.make(Collective::kBroadcast, {.ranks = ranks, .root = ranks - 1});
      if (broadcast != nullptr) {
        EXPECT_FALSE(CheckSchedule(*broadcast, Collective::kBroadcast, 0).ok());
      }
    }
  }
}

TEST(CheckScheduleTest, AMissingCopyOfSendsIsRejected) {
  for (int ranks : {2, 3, 5, 8}) {
    Table broken(*MakeAllReduce("one-shot", ranks));
    broken.set_copies_sends(false);
    EXPECT_FALSE(CheckSchedule(broken, Collective::kAllReduce).ok());
  }
  Table broken(*MakeAllReduce("one-shot", 2));
  broken.set_copies_sends(false);
  EXPECT_EQ(
      CheckSchedule(broken, Collective::kAllReduce).message(),
      "the all_reduce schedule table of 2 ranks is broken: in round 0, rank 0 sends chunk 0 to rank 1, and "
      "receives into chunk 0 from rank 1, which may overwrite it before it is read; copies_sends() is false");
}

TEST(CheckScheduleTest, ABlockForAnotherRankIsRejected) {
  Table broken(*Make("direct", Collective::kAllToAll, {.ranks = 3}));
  // Ranks 0 and 2 exchange the numbers of their blocks for rank 1.
  std::swap(broken.At(1, 0)[1].peer, broken.At(1, 0)[3].peer);
  broken.At(0, 0)[0].first_chunk = 2;
  broken.At(2, 0)[2].first_chunk = 1;
  EXPECT_EQ(CheckSchedule(broken, Collective::kAllToAll).message(),
            "the all_to_all schedule table of 3 ranks is broken: after its last round, 0, rank 1 holds rank "
            "0's contribution to chunk 1 not at all");
}

TEST(CheckScheduleTest, AnAllToAllSendsOnlyItsInput) {
  // Rank 0 forwards what it has received.
  Table broken(*Make("pairwise", Collective::kAllToAll, {.ranks = 3}));
  broken.At(0, 1).push_back({TransferKind::kSend, 1, 1, 1});
  broken.At(1, 1).push_back({TransferKind::kReceive, 0, 1, 1});
  EXPECT_EQ(CheckSchedule(broken, Collective::kAllToAll).message(),
            "the all_to_all schedule table of 3 ranks is broken: in round 1, rank 0 sends chunk 1 to rank 1, "
            "but has already received chunk 1");
}

TEST(CheckScheduleTest, SumsInDifferentOrdersAreRejected) {
  // Each rank adds the others' values to its own: with three or more ranks, sums with different bits.
  const auto own_first = [](int ranks) {
    Table table(*MakeAllReduce("one-shot", ranks));
    for (int rank = 1; rank < ranks; ++rank) {
      std::vector<Transfer>& transfers = table.At(rank, 0);
      std::erase_if(transfers, [&](const Transfer& t) { return t.peer == rank; });
      for (Transfer& t : transfers) {
        if (t.kind == TransferKind::kReceive) t.kind = TransferKind::kReceiveAdd;
      }
    }
    return table;
  };
  EXPECT_EQ(CheckSchedule(own_first(2), Collective::kAllReduce), absl::OkStatus());  // a + b equals b + a
  EXPECT_EQ(CheckSchedule(own_first(3), Collective::kAllReduce).message(),
            "the all_reduce schedule table of 3 ranks is broken: after its last round, 0, rank 2 holds chunk "
            "0 added up in another order than rank 0: their bits may differ");
}

TEST(CheckScheduleTest, TheErrorNamesRankRoundAndChunk) {
  Table broken(*MakeAllReduce("ring", 4));
  broken.At(2, 1)[0].first_chunk = 3;  // rank 2 sends chunk 1 in round 1
  EXPECT_EQ(CheckSchedule(broken, Collective::kAllReduce).message(),
            "the all_reduce schedule table of 4 ranks is broken: in round 1, rank 3 receives and adds chunk "
            "1 from rank 2, which sends chunk 3");
}

TEST(CheckScheduleTest, TheErrorNamesTheRoundThatAddsAContributionAgain) {
  Table broken(*MakeAllReduce("ring", 3));
  for (int rank = 0; rank < 3; ++rank) {
    for (const int round : {2, 3}) broken.At(rank, round)[1].kind = TransferKind::kReceiveAdd;
  }
  EXPECT_EQ(
      CheckSchedule(broken, Collective::kAllReduce).message(),
      "the all_reduce schedule table of 3 ranks is broken: after its last round, 3, rank 0 holds rank "
      "0's contribution to chunk 0 more than once: in round 2, rank 0 adds chunk 0 from rank 2, and both "
      "contain rank 0's contribution");
}

TEST(CheckScheduleTest, ACopyAfterAReceiveIntoTheSameChunkIsRejected) {
  Table broken(*MakeAllReduce("star", 3));
  broken.At(0, 0)[1].kind = TransferKind::kReceive;
  EXPECT_EQ(CheckSchedule(broken, Collective::kAllReduce).message(),
            "the all_reduce schedule table of 3 ranks is broken: in round 0, rank 0 receives chunk 0 from "
            "rank 2, which replaces what comes from rank 1 before it");
}

TEST(CheckScheduleTest, PartlyOverlappingReceivesAreRejected) {
  Table broken(*Make("star", Collective::kReduceScatter, {.ranks = 3}));
  broken.At(0, 0)[1].chunk_count = 2;
  broken.At(2, 0)[0].chunk_count = 2;
  EXPECT_EQ(CheckSchedule(broken, Collective::kReduceScatter).message(),
            "the reduce_scatter schedule table of 3 ranks is broken: in round 0, rank 0 receives and adds "
            "chunks 0-1 from rank 2, and chunks 0-2 from rank 1: they overlap, but are not the same");
}

TEST(CheckScheduleTest, ARankThatEndsBeforeItsPeersIsRejected) {
  Table broken(*MakeAllReduce("ring", 3));
  broken.Rank(1).pop_back();
  EXPECT_EQ(CheckSchedule(broken, Collective::kAllReduce).message(),
            "the all_reduce schedule table of 3 ranks is broken: in round 3, rank 0 sends chunk 0 to rank 1, "
            "which does not receive it: it is done after 3 rounds");
}

TEST(CheckScheduleTest, ARankMayOnlyAddFromItself) {
  for (TransferKind kind : {TransferKind::kSend, TransferKind::kReceive}) {
    Table broken(*MakeAllReduce("one-shot", 2));
    broken.At(1, 0)[2] = {kind, 1, 0, 1};
    const absl::Status status = CheckSchedule(broken, Collective::kAllReduce);
    EXPECT_NE(status.message().find("rank 1, which is itself"), absl::string_view::npos) << status;
  }
}

TEST(CheckScheduleTest, ASendIntoALaterRoundOfThePeerIsADeadlock) {
  // Rank 1 receives one round too late, so both ranks wait for each other.
  Table broken(*MakeAllReduce("ring", 2));
  std::swap(broken.At(1, 0), broken.At(1, 1));
  std::swap(broken.At(1, 0)[0], broken.At(1, 1)[0]);
  EXPECT_FALSE(CheckSchedule(broken, Collective::kAllReduce).ok());
}

}  // namespace
}  // namespace psring
