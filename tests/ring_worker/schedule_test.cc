#include "ring_worker/schedule.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace psring {
namespace {

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

TEST(RingTest, EveryRankSendsOneChunkARoundToTheRightAndReceivesOneFromTheLeft) {
  const auto ring = MakeSchedule("ring", Collective::kAllReduce, {.ranks = 5}).value();
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < 5; ++rank) {
    ASSERT_EQ(ring->rounds(rank), 8);
    for (int round = 0; round < 8; ++round) {
      ring->Round(rank, round, transfers);
      ASSERT_EQ(transfers.size(), 2);
      EXPECT_EQ(transfers[0].action, Action::kSend);
      EXPECT_EQ(transfers[0].peer, (rank + 1) % 5);
      EXPECT_EQ(transfers[1].action, round < 4 ? Action::kReceiveAdd : Action::kReceive);
      EXPECT_EQ(transfers[1].peer, (rank + 4) % 5);
      EXPECT_EQ(transfers[0].chunk_count, 1);
      EXPECT_EQ(transfers[1].chunk_count, 1);
    }
  }
}

TEST(RingTest, ARankPassesOnWhatItHasJustReceived) {
  const auto ring = MakeSchedule("ring", Collective::kAllReduce, {.ranks = 7}).value();
  std::vector<Transfer> before, after;
  for (int rank = 0; rank < 7; ++rank) {
    for (int round = 1; round < ring->rounds(rank); ++round) {
      ring->Round(rank, round - 1, before);
      ring->Round(rank, round, after);
      EXPECT_EQ(before[1].first_chunk, after[0].first_chunk);
    }
  }
}

TEST(StarTest, RankZeroAddsInRankOrder) {
  const auto star = MakeSchedule("star", Collective::kAllReduce, {.ranks = 4}).value();
  std::vector<Transfer> transfers;
  star->Round(0, 0, transfers);
  const std::vector<Transfer> wanted = {
      {Action::kReceiveAdd, 1, 0, 1}, {Action::kReceiveAdd, 2, 0, 1}, {Action::kReceiveAdd, 3, 0, 1}};
  EXPECT_EQ(transfers, wanted);
}

TEST(ScheduleTest, OneRankHasNothingToDo) {
  for (const ScheduleRow& row : AllReduceSchedules()) EXPECT_EQ(row.make(1)->rounds(0), 0) << row.name;
  EXPECT_EQ(StarBroadcast(1, 0)->rounds(0), 0);
}

TEST(ScheduleTest, RanksOfOneClassMoveEquallyMuch) {
  for (const ScheduleRow& row : AllReduceSchedules()) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const auto schedule = row.make(ranks);
      const auto moved = [&](int rank) {
        std::vector<Transfer> transfers;
        int sent = 0, received = 0;
        for (int round = 0; round < schedule->rounds(rank); ++round) {
          schedule->Round(rank, round, transfers);
          for (const Transfer& t : transfers) {
            (t.action == Action::kSend ? sent : received) += t.chunk_count;
          }
        }
        return std::pair(sent, received);
      };
      for (int a = 0; a < ranks; ++a) {
        for (int b = 0; b < a; ++b) {
          if (schedule->symmetry_class(a) != schedule->symmetry_class(b)) continue;
          EXPECT_EQ(moved(a), moved(b));
        }
      }
    }
  }
}

TEST(ScheduleTest, AnUnknownNameIsAnsweredWithThoseThereAre) {
  const auto schedule = MakeAllReduceSchedule("rign", 4);
  ASSERT_EQ(schedule.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(schedule.status().message().find("ring, star"), absl::string_view::npos);
  EXPECT_EQ(MakeAllReduceSchedule("ring", 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psring
