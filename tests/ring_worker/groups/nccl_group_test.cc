// The calls of our NCCL group, its error handling and its timeouts, on a fake libnccl without GPUs
// (fake_nccl.h). Ranks are threads, each with a GPU of the fake.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/devices/make_device.h"
#include "ring_worker/groups/nccl_environment.h"
#include "ring_worker/groups/process_group.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/eventually.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "tests/ring_worker/groups/fake_nccl.h"

namespace psring {
namespace {

using Lines = std::vector<std::string>;

class NcclGroupTest : public testing::Test {
 protected:
  NcclGroupTest() {
    nccl_.Reset();
    ForgetForThisProcess();
  }
  ~NcclGroupTest() override {
    nccl_.Reset();
    TheFakeCuda().devices = 1;
  }

  using Body = std::function<absl::Status(ProcessGroup& group, Device& device, Stream& stream)>;

  // The result of each rank, including errors of making its group.
  std::vector<absl::Status> RunRanks(int ranks, const GroupOptions& options, const Body& body,
                                     bool one_gpu = false) {
    TheFakeCuda().devices = ranks;
    const auto store = std::make_shared<FakeStore>();
    std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        FakeRendezvous rendezvous(store, rank, ranks);
        GroupOptions own = options;
        own.backend = "nccl";
        own.gpu = one_gpu ? 0 : rank;
        const auto device = *MakeDevice(absl::StrCat("cuda:", own.gpu));
        const auto group = MakeProcessGroup(rendezvous, own);
        statuses[static_cast<size_t>(rank)] = group.status();
        if (!group.ok()) return;
        const auto stream = device->NewStream(StreamKind::kBackground, "test");
        statuses[static_cast<size_t>(rank)] = body(**group, *device, *stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  static std::vector<float> Values(Stream& stream, const Buffer& memory) {
    std::vector<float> values(memory.bytes() / sizeof(float));
    stream.Copy(values.data(), memory.data(), memory.bytes());
    EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
    return values;
  }

  static absl::Status AddOnes(ProcessGroup& group, Device& device, Stream& stream) {
    const Buffer memory = *device.Allocate(100 * sizeof(float));
    const std::vector<float> ones(100, static_cast<float>(group.rank() + 1));
    stream.Copy(memory.data(), ones.data(), memory.bytes());
    PSRING_RETURN_IF_ERROR(group.AllReduce(memory.span(), memory.span(), ReduceOp::kSum, stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    const float sum = static_cast<float>(group.size() * (group.size() + 1)) / 2;
    EXPECT_EQ(Values(stream, memory), std::vector<float>(100, sum));
    return absl::OkStatus();
  }

  bool Has(int rank, const std::string& line) const {
    const Lines log = nccl_.Log(rank);
    return std::find(log.begin(), log.end(), line) != log.end();
  }

  // Waits until the rank waits for the others in AddOnes. For one thread.
  void WaitForCall(int rank) const {
    EXPECT_TRUE(Eventually([&] { return Has(rank, "all_reduce 100"); })) << "no call of rank " << rank;
  }

  FakeNccl nccl_ = FakeNccl::Load();
};

TEST_F(NcclGroupTest, CommunicatorsAreInitialisedWithoutBlockingAndDestroyed) {
  for (const absl::Status& status : RunRanks(3, {}, [](auto&group, auto&device, auto&stream) {
         EXPECT_TRUE(group.info().on_gpu);
         EXPECT_EQ(group.info().algorithm, "default");
         EXPECT_TRUE(absl::StartsWith(group.info().transport, "nccl 2.")) << group.info().transport;
         EXPECT_EQ(group.info().wires, Lines{"NCCL"});
         return AddOnes(group, device, stream);
       })) {
    EXPECT_EQ(status, absl::OkStatus());
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(nccl_.Log(rank), (Lines{"init of 3, blocking 0", "all_reduce 100", "finalize", "destroy"}));
  }
}

TEST_F(NcclGroupTest, BucketsReadyTogetherAreOneLaunch) {
  for (const absl::Status& status : RunRanks(2, {}, [](auto&group, auto&device, auto&stream) -> absl::Status {
         std::vector<Buffer> buckets;
         std::vector<Span> spans;
         for (const size_t count : {10, 0, 300, 7}) {
           buckets.push_back(*device.Allocate(count * sizeof(float)));
           const std::vector<float> values(count,
                                           static_cast<float>(count) + static_cast<float>(group.rank()));
           stream.Copy(buckets.back().data(), values.data(), buckets.back().bytes());
           PSRING_RETURN_IF_ERROR(stream.Synchronize());
           spans.push_back(buckets.back().span());
         }
         PSRING_RETURN_IF_ERROR(group.AllReduceTogether(spans, ReduceOp::kSum, stream));
         PSRING_RETURN_IF_ERROR(stream.Synchronize());
         for (const Buffer& bucket : buckets) {
           const size_t count = bucket.bytes() / sizeof(float);
           EXPECT_EQ(Values(stream, bucket), std::vector<float>(count, 2 * static_cast<float>(count) + 1));
         }
         return absl::OkStatus();
       })) {
    EXPECT_EQ(status, absl::OkStatus());
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(nccl_.Log(rank), (Lines{"init of 2, blocking 0", "all_reduce 10", "all_reduce 300",
                                      "all_reduce 7", "launch of a group of 3", "finalize", "destroy"}));
  }
}

TEST_F(NcclGroupTest, AMissingRankAbortsTheOthersAtTheTimeout) {
  std::latch others_end(2);
  const auto statuses =
      RunRanks(3, {.timeout = absl::Milliseconds(300)}, [&](auto& group, auto& device, auto& stream) {
        if (group.rank() == 2) {
          others_end.wait();
          return absl::OkStatus();
        }
        const absl::Cleanup ended = [&] { others_end.count_down(); };
        return AddOnes(group, device, stream);
      });
  for (const int survivor : {0, 1}) {
    EXPECT_EQ(statuses[survivor].code(), absl::StatusCode::kDeadlineExceeded) << statuses[survivor];
    EXPECT_TRUE(absl::StrContains(statuses[survivor].message(), "all_reduce of 100 float32 elements"));
    EXPECT_TRUE(Has(survivor, "abort")) << absl::StrJoin(nccl_.Log(survivor), ", ");
    EXPECT_FALSE(Has(survivor, "destroy"));
  }
}

TEST_F(NcclGroupTest, EveryRankReportsAsynchronousErrorsAndAborts) {
  const auto statuses = RunRanks(3, {}, [this](auto& group, auto& device, auto& stream) {
    if (group.rank() == 2) {  // as if it had died
      for (const int survivor : {0, 1}) WaitForCall(survivor);
      nccl_.Set("async_error", 6);  // ncclRemoteError
      return absl::OkStatus();
    }
    return AddOnes(group, device, stream);
  });
  for (const int survivor : {0, 1}) {
    EXPECT_EQ(statuses[survivor].code(), absl::StatusCode::kUnavailable) << statuses[survivor];
    EXPECT_TRUE(absl::StrContains(statuses[survivor].message(), "remote process exited"))
        << statuses[survivor];
    EXPECT_TRUE(absl::StrContains(statuses[survivor].message(), absl::StrCat("rank ", survivor)));
    EXPECT_TRUE(Has(survivor, "abort"));
  }
}

TEST_F(NcclGroupTest, AnAbortFromAnotherThreadEndsAWaitingCall) {
  std::latch other_ends(1);
  const auto statuses = RunRanks(2, {}, [&](auto& group, auto& device, auto& stream) {
    if (group.rank() == 1) {
      other_ends.wait();
      return absl::OkStatus();
    }
    const absl::Cleanup ended = [&] { other_ends.count_down(); };
    std::thread other([&] {
      WaitForCall(0);
      group.Abort(absl::CancelledError("the user has stopped it"));
    });
    const absl::Status status = AddOnes(group, device, stream);
    other.join();
    return status;
  });
  EXPECT_TRUE(absl::StrContains(statuses[0].message(), "the user has stopped it")) << statuses[0];
  EXPECT_TRUE(Has(0, "abort"));
}

TEST_F(NcclGroupTest, CommunicatorsThatDoNotConnectAreAbortedAtTheTimeout) {
  nccl_.Set("init_hangs", 1);
  for (const absl::Status& status : RunRanks(2, {.timeout = absl::Milliseconds(200)}, AddOnes)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(
        absl::StrContains(status.message(), "the other ranks' communicators was not done after 200ms"))
        << status;
  }
  EXPECT_TRUE(Has(0, "abort") && Has(1, "abort"));
}

TEST_F(NcclGroupTest, AnOlderNcclIsRejectedWithBothVersions) {
  nccl_.Set("version", 21005);
  for (const absl::Status& status : RunRanks(2, {}, AddOnes)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(status.message(), "this machine's NCCL is 2.10.5, and this build needs 2."))
        << status;
  }
  EXPECT_EQ(nccl_.Log(0), Lines());
}

TEST_F(NcclGroupTest, RanksWithDifferentVersionsReportBoth) {
  nccl_.Set("version", 29000);
  nccl_.Set("later_version", 29105);
  for (const absl::Status& status : RunRanks(2, {}, AddOnes)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(status.message(), "2.90.0") &&
                absl::StrContains(status.message(), "2.91.5"))
        << status;
  }
}

TEST_F(NcclGroupTest, VariablesAreSetOnlyDuringInitialisation) {
  for (const absl::Status& status :
       RunRanks(2, {.algorithm = "ring", .transport = "tcp"}, [](auto&group, auto&device, auto&stream) {
         EXPECT_EQ(group.info().algorithm, "ring");
         EXPECT_TRUE(absl::EndsWith(group.info().transport, " tcp")) << group.info().transport;
         EXPECT_EQ(group.info().wires, Lines{"NCCL over sockets"});
         return AddOnes(group, device, stream);
       })) {
    EXPECT_EQ(status, absl::OkStatus());
  }
  for (int rank = 0; rank < 2; ++rank) {
    for (const char* variable : {"NCCL_ALGO=Ring", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1",
                                 "NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME==lo"}) {
      EXPECT_TRUE(Has(rank, variable)) << variable;
    }
  }
  EXPECT_EQ(getenv("NCCL_ALGO"), nullptr) << "only during initialization";
}

TEST_F(NcclGroupTest, OneProcessHasOneSetOfRestrictions) {
  for (const auto& [first, second] : {std::pair("auto", "tcp"), {"tcp", "auto"}}) {
    ForgetForThisProcess();
    for (const absl::Status& status : RunRanks(2, {.transport = first}, AddOnes)) {
      EXPECT_EQ(status, absl::OkStatus());
    }
    nccl_.Reset();
    for (const absl::Status& status : RunRanks(2, {.transport = second}, AddOnes)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_TRUE(absl::StrContains(status.message(), "NCCL reads its settings once per process")) << status;
    }
    EXPECT_EQ(nccl_.Log(0), Lines()) << "no communicator with other settings than it says";
    for (const absl::Status& status : RunRanks(2, {.algorithm = "ring", .transport = first}, AddOnes)) {
      EXPECT_EQ(status, absl::OkStatus()) << "NCCL_ALGO is read for every communicator";
    }
  }
}

TEST_F(NcclGroupTest, ThreadsOfOneProcessOnOneGpuAreRejectedWithARemedy) {
  for (const absl::Status& status : RunRanks(2, {}, AddOnes, /*one_gpu=*/true)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(status.message(), "ranks 0 and 1 are threads of one process on one GPU"));
    EXPECT_TRUE(absl::StrContains(status.message(), "--backend native")) << status;
  }
}

}  // namespace
}  // namespace psring
