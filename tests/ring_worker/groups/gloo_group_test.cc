// Gloo over loopback, with threads as ranks.
#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "ring_worker/groups/groups.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "tests/ring_worker/groups/group_checks.h"

namespace psring {
namespace {

class GlooGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    const BackendRow gloo = BackendNamed("gloo");
    if (!gloo.available()) GTEST_SKIP() << "this build has no gloo: " << gloo.missing;
  }

  using Body = std::function<absl::Status(ProcessGroup& group, Stream& stream)>;

  // Runs ranks `first` and above of `ranks`; their results.
  std::vector<absl::Status> RunRanks(int ranks, const GroupOptions& options, const Body& body, int first = 0,
                                     absl::Duration rendezvous = absl::Seconds(20)) {
    const auto store = std::make_shared<FakeStore>();
    std::vector<absl::Status> statuses(ranks);
    std::vector<std::thread> threads;
    for (int rank = first; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        FakeRendezvous meeting(store, rank, ranks, rendezvous);
        auto group = MakeProcessGroup(meeting, options);
        if (!group.ok()) {
          statuses[rank] = group.status();
          return;
        }
        const auto stream = device_->NewStream(StreamKind::kCompute, "test");
        statuses[rank] = body(**group, *stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  GroupOptions options(const std::string& algorithm = "") {
    GroupOptions options;
    options.backend = "gloo";
    options.algorithm = algorithm;
    options.timeout = absl::Seconds(20);
    return options;
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice();
};

TEST_F(GlooGroupTest, EveryCollectiveIsCorrectForEveryTypeSizeAndOp) {
  for (const std::string algorithm : {"ring", "bcube"}) {
    for (int ranks : {1, 2, 3, 4, 5}) {
      const auto statuses = RunRanks(ranks, options(algorithm), [&](ProcessGroup& group, Stream& stream) {
        EXPECT_EQ(group.info().backend, "gloo");
        EXPECT_EQ(group.info().algorithm, algorithm);
        EXPECT_EQ(group.info().transport, "tcp");
        return CheckCollectives(group, stream, BackendNamed("gloo"));
      });
      for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST_F(GlooGroupTest, TheDefaultIsARingWithDerivedTraffic) {
  RunRanks(4, options(), [&](ProcessGroup& group, Stream& stream) {
    EXPECT_EQ(group.info().algorithm, "ring");
    TestBuffer data(DType::kFloat32, 1000, group.rank());
    EXPECT_TRUE(group.AllReduce(data.span(), data.span(), ReduceOp::kSum, stream).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    EXPECT_EQ(group.traffic().payload_tx_bytes, 2 * 3 * 4000 / 4);
    return absl::OkStatus();
  });
}

TEST_F(GlooGroupTest, TwoGroupsCanUseOneStore) {
  const auto store = std::make_shared<FakeStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      FakeRendezvous meeting(store, rank, 2);
      auto first = MakeProcessGroup(meeting, options("ring"));
      auto second = MakeProcessGroup(meeting, options("bcube"));
      ASSERT_TRUE(first.ok()) << first.status();
      ASSERT_TRUE(second.ok()) << second.status();
      const auto stream = device_->NewStream(StreamKind::kCompute, "test");
      for (auto* group : {&*first, &*second}) {
        const absl::Status status = CheckAllReduce(**group, *stream, 1000, DType::kFloat32, ReduceOp::kSum);
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GlooGroupTest, AMissingRankIsNamedAtTheTimeout) {
  const auto statuses = RunRanks(
      3, options(), [](ProcessGroup&, Stream&) { return absl::OkStatus(); }, 1, absl::Milliseconds(300));
  for (int rank : {1, 2}) {
    EXPECT_FALSE(statuses[rank].ok());
    EXPECT_TRUE(absl::StrContains(statuses[rank].message(), "rank 0")) << statuses[rank];
  }
}

TEST_F(GlooGroupTest, ARankThatDoesNotCallIsAnErrorAtTheTimeout) {
  GroupOptions hasty = options();
  hasty.timeout = absl::Milliseconds(500);
  std::latch others_end(2);
  const auto statuses = RunRanks(3, hasty, [&](ProcessGroup& group, Stream& stream) {
    if (group.rank() == 2) {
      others_end.wait();
      return absl::OkStatus();
    }
    const absl::Cleanup ended = [&] { others_end.count_down(); };
    return CheckAllReduce(group, stream, 1000, DType::kFloat32, ReduceOp::kSum);
  });
  for (int rank : {0, 1}) {
    EXPECT_FALSE(statuses[rank].ok());
    EXPECT_TRUE(absl::StrContains(statuses[rank].message(), "gloo")) << statuses[rank];
    EXPECT_TRUE(absl::StrContains(statuses[rank].message(), "500ms")) << statuses[rank];
  }
}

TEST_F(GlooGroupTest, AbortFailsAWaitingCallAndLaterOnesWithTheReason) {
  std::latch other_ends(1);
  const auto statuses = RunRanks(2, options(), [&](ProcessGroup& group, Stream& stream) {
    if (group.rank() == 1) {
      other_ends.wait();
      return absl::OkStatus();
    }
    const absl::Cleanup ended = [&] { other_ends.count_down(); };
    std::latch calling(1);
    std::thread other([&] {
      calling.wait();
      group.Abort(absl::CancelledError("had enough"));
    });
    calling.count_down();
    const absl::Status first = CheckAllReduce(group, stream, 1000, DType::kFloat32, ReduceOp::kSum);
    other.join();
    EXPECT_TRUE(absl::StrContains(first.message(), "had enough")) << first;
    return CheckAllReduce(group, stream, 1000, DType::kFloat32, ReduceOp::kSum);
  });
  EXPECT_TRUE(absl::StrContains(statuses[0].message(), "had enough")) << statuses[0];
}

TEST_F(GlooGroupTest, UnsupportedOptionsAreRejectedWithTheSupportedOnes) {
  const absl::Status algorithm = CheckGroupOptions(options("star"), Collective::kAllReduce);
  EXPECT_TRUE(absl::StrContains(algorithm.message(), "ring, bcube")) << algorithm;
  const absl::Status scatter = CheckGroupOptions(options(), Collective::kReduceScatter);
  EXPECT_TRUE(absl::StrContains(scatter.message(), "gloo offers no reduce_scatter")) << scatter;
  GroupOptions shm = options();
  shm.transport = "shm";
  const absl::Status transport = CheckGroupOptions(shm, Collective::kAllReduce);
  EXPECT_TRUE(absl::StrContains(transport.message(), "tcp")) << transport;
}

TEST(BackendsTest, AnAbsentBackendIsRejectedWithWhatToInstall) {
  for (const BackendRow& row : Backends()) {
    if (row.available()) continue;
    GroupOptions options;
    options.backend = row.name;
    const absl::Status status = CheckGroupOptions(options, Collective::kAllReduce);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(absl::StrContains(status.message(), "install")) << status;
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
