// Parts of a group, with threads as ranks.
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/group_checks.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

TEST(RanksOfPart, AreOrderedByKeyThenByRank) {
  EXPECT_EQ(RanksOfPart({0, 1, 0, 1, 0}, {0, 0, 0, 0, 0}, 0), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(RanksOfPart({0, 1, 0, 1, 0}, {9, 0, 9, -1, 3}, 0), (std::vector<int>{4, 0, 2}));
  EXPECT_EQ(RanksOfPart({0, 1, 0, 1, 0}, {9, 0, 9, -1, 3}, 1), (std::vector<int>{3, 1}));
  EXPECT_TRUE(RanksOfPart({0, kNoColor}, {0, 0}, 7).empty());
}

// {backend, transport}
class SplitTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const BackendRow& backend = BackendNamed(std::get<0>(GetParam()));
    if (!backend.available()) GTEST_SKIP() << "this build has no " << backend.name << ": " << backend.missing;
  }

  static void OnGroups(int ranks, const RankBody& body) {
    const auto& [backend, transport] = GetParam();
    GroupOptions options;
    options.backend = backend;
    options.transport = transport;
    options.timeout = absl::Seconds(20);
    ExpectGroups(ranks, options, body);
  }

  // The ranks of a part add their ranks in the whole group.
  static absl::Status ExpectSum(ProcessGroup& part, Stream& stream, float mine, float sum) {
    std::vector<float> values(1000, mine);
    PSRING_RETURN_IF_ERROR(AddUp(part, stream, values));
    EXPECT_EQ(values, std::vector<float>(1000, sum));
    return absl::OkStatus();
  }
};

TEST_P(SplitTest, EveryRankIsAmongTheRanksOfItsHost) {
  OnGroups(3, [](ProcessGroup& group, Stream&) {
    EXPECT_EQ(group.local_size(), 3);
    EXPECT_EQ(group.local_rank(), group.rank());
    return absl::OkStatus();
  });
}

TEST_P(SplitTest, PartsAndTheWholeGroupWorkConcurrently) {
  OnGroups(5, [](ProcessGroup& group, Stream& stream) {
    const float mine = static_cast<float>(group.rank());
    // Even ranks and odd ranks, the odd ones in reverse order.
    PSRING_ASSIGN_OR_RETURN(const auto part,
                            group.Split(group.rank() % 2, group.rank() % 2 == 1 ? -group.rank() : 0));
    EXPECT_EQ(part->size(), group.rank() % 2 == 0 ? 3 : 2);
    EXPECT_EQ(part->rank(), group.rank() % 2 == 0 ? group.rank() / 2 : group.rank() == 3 ? 0 : 1);
    EXPECT_EQ(part->local_size(), part->size());
    EXPECT_EQ(part->info().backend, group.info().backend);
    PSRING_RETURN_IF_ERROR(ExpectSum(*part, stream, mine, group.rank() % 2 == 0 ? 0 + 2 + 4 : 1 + 3));
    PSRING_RETURN_IF_ERROR(ExpectSum(group, stream, mine, 0 + 1 + 2 + 3 + 4));
    return ExpectSum(*part, stream, mine, group.rank() % 2 == 0 ? 0 + 2 + 4 : 1 + 3);
  });
}

TEST_P(SplitTest, ARankMayBeInNoPartAndPartsCanBeSplit) {
  OnGroups(4, [](ProcessGroup& group, Stream& stream) {
    PSRING_ASSIGN_OR_RETURN(const auto part, group.Split(group.rank() == 1 ? kNoColor : 5, 0));
    EXPECT_EQ(part == nullptr, group.rank() == 1);
    if (part != nullptr) {
      EXPECT_EQ(part->size(), 3);
      PSRING_ASSIGN_OR_RETURN(const auto alone, part->Split(part->rank(), 0));
      EXPECT_EQ(alone->size(), 1);
      PSRING_RETURN_IF_ERROR(ExpectSum(*alone, stream, 7, 7));
      PSRING_ASSIGN_OR_RETURN(const auto again, part->Split(0, -part->rank()));
      EXPECT_EQ(again->rank(), 2 - part->rank());
      PSRING_RETURN_IF_ERROR(ExpectSum(*again, stream, 1, 3));
    }
    PSRING_RETURN_IF_ERROR(group.Barrier(stream));
    return stream.Synchronize();
  });
}

// A hierarchical all-reduce: add within each node, then over the nodes, then broadcast within each node.
TEST_P(SplitTest, NodesAndLeadersTogetherMakeAnAllReduce) {
  OnGroups(6, [](ProcessGroup& group, Stream& stream) {
    const int per_node = 2, node = group.rank() / per_node;
    PSRING_ASSIGN_OR_RETURN(const auto within, group.Split(node, 0));
    PSRING_ASSIGN_OR_RETURN(const auto across, group.Split(within->rank() == 0 ? 0 : kNoColor, 0));
    std::vector<float> values(101, static_cast<float>(group.rank()));
    const Span span = {values.data(), values.size()};
    PSRING_RETURN_IF_ERROR(within->AllReduce(span, span, ReduceOp::kSum, stream));
    if (across != nullptr) PSRING_RETURN_IF_ERROR(across->AllReduce(span, span, ReduceOp::kSum, stream));
    PSRING_RETURN_IF_ERROR(within->Broadcast(span, 0, stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_EQ(values, std::vector<float>(101, 0 + 1 + 2 + 3 + 4 + 5));
    return absl::OkStatus();
  });
}

TEST_P(SplitTest, ANegativeColorIsRejected) {
  OnGroups(1, [](ProcessGroup& group, Stream&) {
    EXPECT_EQ(group.Split(-2, 0).status().code(), absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  });
}

TEST_P(SplitTest, APartNamesRanksByTheirNumbersInTheJob) {
  if (std::get<0>(GetParam()) != "native") GTEST_SKIP() << "psring's own backend names ranks";
  OnGroups(4, [](ProcessGroup& group, Stream& stream) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const auto part, group.Split(group.rank() == 1 ? kNoColor : 0, 0));
    if (part == nullptr) return absl::OkStatus();
    // Ranks 2 and 3 of the job: a part of the part.
    PSRING_ASSIGN_OR_RETURN(const auto last, part->Split(part->rank() == 0 ? kNoColor : 0, 0));
    if (last == nullptr || last->rank() == 1) return absl::OkStatus();  // rank 3 leaves without a call
    std::vector<float> values(1000);
    EXPECT_THAT(AddUp(*last, stream, values).message(), Has("rank 3 has left; rank 2 still needs it"));
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, SplitTest,
                         testing::Values(std::tuple("native", "shm"), std::tuple("native", "tcp"),
                                         std::tuple("gloo", "tcp")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
                         });

TEST(Split, AMissingRankIsNamed) {
  const auto body = [](ProcessGroup& group, Stream&) {
    return group.rank() == 1 ? absl::OkStatus() : group.Split(0, 0).status();
  };
  const auto statuses = RunGroups(2, {}, body, /*first=*/0, absl::Seconds(1));
  EXPECT_THAT(statuses[0].message(), Has("rank 1"));
}

TEST(Split, AGroupWithoutARendezvousCannotBeSplit) {
  RunRanks("shm", 2, {}, [](ProcessGroup& group, Stream&) {
    EXPECT_EQ(group.Split(0, 0).status().code(), absl::StatusCode::kFailedPrecondition);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace psring
