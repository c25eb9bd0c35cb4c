// Two machines of two ranks, as processes of this one, which add up their gradients before the server.
#include <gmock/gmock.h>

#include "tests/trainer/main/trainer_process.h"

namespace psring {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr int kRanks = 4, kEach = 2;

class LocalAggregationProcess : public TrainerProcess {
 protected:
  Children StartRanks(const std::string& flags) {
    return StartTrainers(kRanks, absl::StrCat("--strategy ps-sync --local_aggregation ", flags), kEach);
  }
};

TEST_F(LocalAggregationProcess, TheServerSeesTwoWorkersAndTheWeightsAreTheReferences) {
  const auto server = StartServer(0, 1, kRanks / kEach);
  ExpectSuccess(StartRanks(absl::StrCat("--deterministic", kShort)));
  ExpectSuccess(*server);
  const RankResult result = Result(0);
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(Result(rank).weights_hash, result.weights_hash);

  const uint64_t gradients = 6 * (kRanks / kEach) * 4 * static_cast<uint64_t>(SentElements(result));
  EXPECT_EQ(Served(0).payload_rx_bytes, gradients);
  EXPECT_EQ(Served(0).payload_tx_bytes, gradients);

  const RankResult alone = TrainAlone(absl::StrCat("--strategy single --reference_workers ", kRanks / kEach,
                                                   " --micro_batches ", kEach, kShort));
  EXPECT_EQ(alone.weights_hash, result.weights_hash);
}

// A rank that leads its machine, and one that does not.
TEST_F(LocalAggregationProcess, AKilledRankEndsTheJobAndIsNamed) {
  for (const int killed : {2, 3}) {
    SCOPED_TRACE(killed);
    MeetAnew();
    const auto server = StartServer(0, 1, kRanks / kEach);
    const auto ranks = StartRanks(
        "--progress json --model mlp-small --data synthetic --steps 1000000 --no_eval --timeout 20");
    for (const auto& rank : ranks) ASSERT_TRUE(MakesSteps(*rank)) << rank->errors();
    ranks[killed]->Signal(SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_NE(ranks[rank]->Wait(), 0);
    EXPECT_NE(server->Wait(), 0);
    EXPECT_THAT(ranks[5 - killed]->errors(),
                HasSubstr(absl::StrCat("rank ", killed, " closed its connection to rank ", 5 - killed)));
    EXPECT_THAT(ranks[0]->errors(), HasSubstr("worker 1"));
    EXPECT_THAT(ranks[1]->errors(), AnyOf(HasSubstr("worker 1"), HasSubstr("rank 0")));
  }
}

TEST_F(LocalAggregationProcess, RejectsMachinesThatItCannotUse) {
  for (const auto& [per_machine, message] : {std::pair{0, "set LOCAL_RANK and LOCAL_WORLD_SIZE"},
                                             {1, "a machine has only one; omit it"},
                                             {3, "this one has 3 of 4"}}) {
    const auto rank =
        StartTrainer(0, kRanks, absl::StrCat("--strategy ps-sync --local_aggregation", kShort), per_machine);
    EXPECT_EQ(rank->Wait(), 2);
    EXPECT_THAT(rank->errors(), HasSubstr(message));
  }
  const auto ring = StartTrainer(0, kRanks, absl::StrCat("--strategy ring --local_aggregation", kShort), 2);
  EXPECT_EQ(ring->Wait(), 2);
  EXPECT_THAT(ring->errors(), HasSubstr("--local_aggregation is for the strategies that have servers"));
}

}  // namespace
}  // namespace psring
