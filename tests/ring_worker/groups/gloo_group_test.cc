// Gloo over loopback, with threads as ranks.
#include <gtest/gtest.h>

#include <latch>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "ring_worker/groups/groups.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/group_checks.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

class GlooGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    const BackendRow gloo = BackendNamed("gloo");
    if (!gloo.available()) GTEST_SKIP() << "this build has no gloo: " << gloo.missing;
  }

  GroupOptions options(const std::string& algorithm = "") {
    GroupOptions options;
    options.backend = "gloo";
    options.algorithm = algorithm;
    options.timeout = absl::Seconds(20);
    return options;
  }
};

absl::Status AddThousand(ProcessGroup& group, Stream& stream) {
  return CheckAllReduce({group, stream}, 1000, DType::kFloat32, ReduceOp::kSum);
}

TEST_F(GlooGroupTest, EveryCollectiveIsCorrectForEveryTypeSizeAndOp) {
  for (const std::string algorithm : {"ring", "bcube"}) {
    for (int ranks : {1, 2, 3, 4}) {
      const auto statuses = RunGroups(ranks, options(algorithm), [&](ProcessGroup& group, Stream& stream) {
        EXPECT_EQ(group.info().backend, "gloo");
        EXPECT_EQ(group.info().algorithm, algorithm);
        EXPECT_EQ(group.info().transport, "tcp");
        return CheckAllCollectives({group, stream});
      });
      for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST_F(GlooGroupTest, TheDefaultIsARingWithDerivedTraffic) {
  RunGroups(4, options(), [&](ProcessGroup& group, Stream& stream) {
    EXPECT_EQ(group.info().algorithm, "ring");
    std::vector<float> data(1000);
    EXPECT_EQ(AddUp(group, stream, data), absl::OkStatus());
    EXPECT_EQ(group.traffic().payload_tx_bytes, 2 * 3 * 4000 / 4);
    return absl::OkStatus();
  });
}

TEST_F(GlooGroupTest, TwoGroupsCanUseOneStore) {
  OnRanks(2, [&](FakeRendezvous& rendezvous, int) {
    auto first = MakeProcessGroup(rendezvous, options("ring"));
    auto second = MakeProcessGroup(rendezvous, options("bcube"));
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    const auto stream = HostDevice().NewStream(StreamKind::kCompute, "test");
    for (auto* group : {&*first, &*second}) EXPECT_EQ(AddThousand(**group, *stream), absl::OkStatus());
  });
}

TEST_F(GlooGroupTest, AMissingRankIsNamedAtTheTimeout) {
  const auto statuses = RunGroups(
      3, options(), [](ProcessGroup&, Stream&) { return absl::OkStatus(); }, 1, absl::Milliseconds(300));
  for (int rank : {1, 2}) EXPECT_THAT(statuses[rank].message(), Has("rank 0"));
}

TEST_F(GlooGroupTest, ARankThatDoesNotCallIsAnErrorAtTheTimeout) {
  GroupOptions hasty = options();
  hasty.timeout = absl::Milliseconds(500);
  std::latch others_end(2);
  const auto statuses = RunGroups(3, hasty, [&](ProcessGroup& group, Stream& stream) {
    return UnlessSilent(group.rank() == 2, others_end, [&] { return AddThousand(group, stream); });
  });
  for (int rank : {0, 1}) EXPECT_THAT(statuses[rank].message(), Has("gloo", "500ms"));
}

TEST_F(GlooGroupTest, AbortFailsAWaitingCallAndLaterOnesWithTheReason) {
  std::latch other_ends(1);
  const auto statuses = RunGroups(2, options(), [&](ProcessGroup& group, Stream& stream) {
    return UnlessSilent(group.rank() == 1, other_ends, [&] {
      std::latch calling(1);
      std::thread other([&] {
        calling.wait();
        group.Abort(absl::CancelledError("had enough"));
      });
      calling.count_down();
      const absl::Status first = AddThousand(group, stream);
      other.join();
      EXPECT_THAT(first.message(), Has("had enough"));
      return AddThousand(group, stream);
    });
  });
  EXPECT_THAT(statuses[0].message(), Has("had enough"));
}

TEST_F(GlooGroupTest, UnsupportedOptionsAreRejectedWithTheSupportedOnes) {
  EXPECT_THAT(CheckGroupOptions(options("star"), Collective::kAllReduce).message(), Has("ring, bcube"));
  const absl::Status scatter = CheckGroupOptions(options(), Collective::kReduceScatter);
  EXPECT_THAT(scatter.message(), Has("gloo offers no reduce_scatter"));
  GroupOptions shm = options();
  shm.transport = "shm";
  EXPECT_THAT(CheckGroupOptions(shm, Collective::kAllReduce).message(), Has("tcp"));
}

TEST(BackendsTest, AnAbsentBackendIsRejectedWithWhatToInstall) {
  for (const BackendRow& row : Backends()) {
    if (row.available()) continue;
    GroupOptions options;
    options.backend = row.name;
    const absl::Status status = CheckGroupOptions(options, Collective::kAllReduce);
    EXPECT_THAT(status, Fails(absl::StatusCode::kNotFound, "install"));
  }
}

TEST(BackendsTest, NcclWithoutAGpuIsRejectedInOneLine) {
  const BackendRow nccl = BackendNamed("nccl");
  if (!nccl.available()) GTEST_SKIP() << "this build has no NCCL: " << nccl.missing;
  FakeRendezvous alone(std::make_shared<FakeStore>(), 0, 1);
  GroupOptions options;
  options.backend = "nccl";
  const auto group = MakeProcessGroup(alone, options);
  if (group.ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(group.status().code(), absl::StatusCode::kFailedPrecondition) << group.status();
  EXPECT_TRUE(absl::StartsWith(group.status().message(), "NCCL needs a GPU")) << group.status();
  EXPECT_FALSE(absl::StrContains(group.status().message(), "\n"));
}

}  // namespace
}  // namespace psring
