#include "ring_worker/schedule_check.h"

#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace psring {
namespace {

// A schedule as a table, so that it can be broken.
class Table final : public Schedule {
 public:
  explicit Table(const Schedule& original) : chunks_(original.chunks()), rounds_(original.ranks()) {
    for (int rank = 0; rank < original.ranks(); ++rank) {
      rounds_[rank].resize(original.rounds(rank));
      for (int round = 0; round < original.rounds(rank); ++round) {
        original.Round(rank, round, rounds_[rank][round]);
      }
    }
  }

  std::string name() const override { return "table"; }
  int ranks() const override { return static_cast<int>(rounds_.size()); }
  int chunks() const override { return chunks_; }
  int rounds(int rank) const override { return static_cast<int>(rounds_[rank].size()); }
  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers = rounds_[rank][round];
  }

  std::vector<Transfer>& At(int rank, int round) { return rounds_[rank][round]; }

 private:
  int chunks_;
  std::vector<std::vector<std::vector<Transfer>>> rounds_;  // [rank][round]
};

TEST(CheckScheduleTest, EveryAllReduceIsProvedForOneToSixteenRanks) {
  for (const ScheduleRow& row : AllReduceSchedules()) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      EXPECT_EQ(CheckSchedule(*row.make(ranks), Goal::kAllReduce), absl::OkStatus());
    }
  }
}

TEST(CheckScheduleTest, SixtyFourRanksAreProvedWithinSeconds) {
  const absl::Time begin = absl::Now();
  for (const ScheduleRow& row : AllReduceSchedules()) {
    EXPECT_EQ(CheckSchedule(*row.make(64), Goal::kAllReduce), absl::OkStatus());
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));  // generous: sanitizers, busy machines
}

TEST(CheckScheduleTest, ABroadcastIsNoAllReduceAndTheReverse) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    EXPECT_EQ(CheckSchedule(*StarBroadcast(ranks, 0), Goal::kBroadcastFrom0), absl::OkStatus());
    EXPECT_FALSE(CheckSchedule(*StarBroadcast(ranks, 0), Goal::kAllReduce).ok());
    EXPECT_FALSE(CheckSchedule(*StarBroadcast(ranks, ranks - 1), Goal::kBroadcastFrom0).ok());
    EXPECT_FALSE(CheckSchedule(*RingAllReduce(ranks), Goal::kBroadcastFrom0).ok());
  }
}

struct Mutation {
  const char* name;
  // Breaks transfer `index` of the list; false where it cannot, such as another chunk where there is one.
  std::function<bool(std::vector<Transfer>& transfers, size_t index, const Table& table)> apply;
};

const std::vector<Mutation>& Mutations() {
  static const auto& mutations = *new std::vector<Mutation>{
      {"drop",
       [](auto& transfers, size_t i, const Table&) {
         transfers.erase(transfers.begin() + i);
         return true;
       }},
      {"duplicate",
       [](auto& transfers, size_t i, const Table&) {
         transfers.push_back(Transfer(transfers[i]));
         return true;
       }},
      {"redirect to the next rank",
       [](auto& transfers, size_t i, const Table& table) {
         transfers[i].peer = (transfers[i].peer + 1) % table.ranks();
         return true;
       }},
      {"redirect to nobody",
       [](auto& transfers, size_t i, const Table& table) {
         transfers[i].peer = table.ranks();
         return true;
       }},
      {"another chunk",
       [](auto& transfers, size_t i, const Table& table) {
         transfers[i].first_chunk = (transfers[i].first_chunk + 1) % table.chunks();
         return table.chunks() > 1;
       }},
      {"a chunk too many",
       [](auto& transfers, size_t i, const Table&) {
         ++transfers[i].chunk_count;
         return true;
       }},
      {"a chunk that does not exist",
       [](auto& transfers, size_t i, const Table& table) {
         transfers[i].first_chunk = table.chunks();
         return true;
       }},
      {"receive becomes receive-add and the reverse",
       [](auto& transfers, size_t i, const Table&) {
         Action& action = transfers[i].action;
         if (action == Action::kSend) return false;
         action = action == Action::kReceive ? Action::kReceiveAdd : Action::kReceive;
         return true;
       }},
      {"send becomes receive and the reverse",
       [](auto& transfers, size_t i, const Table&) {
         Action& action = transfers[i].action;
         action = action == Action::kSend ? Action::kReceive : Action::kSend;
         return true;
       }},
  };
  return mutations;
}

TEST(CheckScheduleTest, EverySingleMutationOfEveryTransferIsCaughtAndLocated) {
  int64_t caught = 0;
  for (const ScheduleRow& row : AllReduceSchedules()) {
    // Every transfer of small rings, a sample of large ones.
    for (int ranks = 2; ranks <= 16; ++ranks) {
      const Table original(*row.make(ranks));
      int64_t position = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int round = 0; round < original.rounds(rank); ++round) {
          const size_t transfers = Table(original).At(rank, round).size();
          for (size_t i = 0; i < transfers; ++i) {
            if (ranks > 5 && position++ % 29 != 0) continue;
            for (const Mutation& mutation : Mutations()) {
              Table broken = original;
              if (!mutation.apply(broken.At(rank, round), i, broken)) continue;
              const absl::Status status = CheckSchedule(broken, Goal::kAllReduce);
              EXPECT_FALSE(status.ok()) << row.name << " of " << ranks << ": " << mutation.name << " at rank "
                                        << rank << ", round " << round << ", transfer " << i;
              for (const char* where : {"rank ", "round ", "chunk"}) {
                EXPECT_NE(status.message().find(where), absl::string_view::npos) << status;
              }
              ++caught;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(caught, 2000);
}

TEST(CheckScheduleTest, TheErrorNamesRankRoundAndChunk) {
  Table broken(*RingAllReduce(4));
  broken.At(2, 1)[0].first_chunk = 3;  // rank 2 sends chunk 1 in round 1
  const absl::Status status = CheckSchedule(broken, Goal::kAllReduce);
  EXPECT_EQ(
      status.message(),
      "schedule table of 4 ranks is broken: in round 1, rank 3 receives and adds chunk 1 from rank 2, which "
      "sends chunk 3");
}

TEST(CheckScheduleTest, ACopyBesideAnotherReceiveIntoOneChunkIsRefused) {
  Table broken(*StarAllReduce(3));
  broken.At(0, 0)[1].action = Action::kReceive;
  EXPECT_EQ(
      CheckSchedule(broken, Goal::kAllReduce).message(),
      "schedule table of 3 ranks is broken: in round 0, rank 0 receives chunk 0 from rank 2, and chunk 0 "
      "from another in the same round");
}

TEST(CheckScheduleTest, ASendIntoALaterRoundOfThePeerIsADeadlock) {
  // Rank 1 receives one round too late: both would wait for each other.
  Table broken(*RingAllReduce(2));
  std::swap(broken.At(1, 0), broken.At(1, 1));
  std::swap(broken.At(1, 0)[0], broken.At(1, 1)[0]);
  EXPECT_FALSE(CheckSchedule(broken, Goal::kAllReduce).ok());
}

}  // namespace
}  // namespace psring
