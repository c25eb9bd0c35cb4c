// The calls of our NCCL group, its error handling and its timeouts, on a fake libnccl without GPUs
// (fake_nccl.h). Ranks are threads, each with a GPU of the fake.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/device_factory/make_device.h"
#include "ring_worker/groups/nccl_environment.h"
#include "ring_worker/groups/process_group.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "tests/ring_worker/groups/channel_checks.h"
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
    std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
    OnRanks(ranks, [&](FakeRendezvous& rendezvous, int rank) {
      GroupOptions own = options;
      own.backend = "nccl";
      own.gpu = one_gpu ? 0 : rank;
      const auto device = *MakeDevice(absl::StrCat("cuda:", own.gpu));
      const auto group = MakeProcessGroup(rendezvous, own);
      const auto stream = device->NewStream(StreamKind::kBackground, "test");
      statuses[static_cast<size_t>(rank)] = group.ok() ? body(**group, *device, *stream) : group.status();
    });
    return statuses;
  }

  void ExpectAll(const std::vector<absl::Status>& statuses, absl::StatusCode code,
                 const std::vector<std::string>& parts = {}) const {
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), code) << status;
      for (const std::string& part : parts) EXPECT_THAT(status.message(), Has(part));
    }
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

  bool Logged(int rank, const std::string& line) const {
    const Lines log = nccl_.Log(rank);
    return std::find(log.begin(), log.end(), line) != log.end();
  }

  // Waits until the rank waits for the others in AddOnes. For one thread.
  void WaitForCall(int rank) const {
    EXPECT_TRUE(Eventually([&] { return Logged(rank, "all_reduce 100"); })) << "no call of rank " << rank;
  }

  FakeNccl nccl_ = FakeNccl::Load();
};

TEST_F(NcclGroupTest, CommunicatorsAreInitialisedWithoutBlockingAndDestroyed) {
  ExpectAll(RunRanks(3, {},
                     [](auto& group, auto& device, auto& stream) {
                       EXPECT_TRUE(group.info().on_gpu);
                       EXPECT_EQ(group.info().algorithm, "default");
                       EXPECT_THAT(group.info().transport, testing::StartsWith("nccl 2."));
                       EXPECT_EQ(group.info().wires, Lines{"NCCL"});
                       return AddOnes(group, device, stream);
                     }),
            absl::StatusCode::kOk);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(nccl_.Log(rank), (Lines{"init of 3, blocking 0", "all_reduce 100", "finalize", "destroy"}));
}

TEST_F(NcclGroupTest, BucketsReadyTogetherAreOneLaunch) {
  const auto statuses = RunRanks(2, {}, [](auto& group, auto& device, auto& stream) -> absl::Status {
    std::vector<Buffer> buckets;
    std::vector<Span> spans;
    for (const size_t count : {10, 0, 300, 7}) {
      buckets.push_back(*device.Allocate(count * sizeof(float)));
      const std::vector<float> values(count, static_cast<float>(count) + static_cast<float>(group.rank()));
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
  });
  ExpectAll(statuses, absl::StatusCode::kOk);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(nccl_.Log(rank), (Lines{"init of 2, blocking 0", "all_reduce 10", "all_reduce 300",
                                      "all_reduce 7", "launch of a group of 3", "finalize", "destroy"}));
}

TEST_F(NcclGroupTest, AnAllToAllIsAGroupOfSendsAndReceives) {
  const auto statuses = RunRanks(2, {}, [](auto& group, auto& device, auto& stream) {
    return CollectiveChecks({group, stream, device}, 5, DType::kFloat32, ReduceOp::kSum, /*shared=*/false)
        .AllToAll();
  });
  ExpectAll(statuses, absl::StatusCode::kOk);
  for (int rank = 0; rank < 2; ++rank) {
    for (const int peer : {0, 1}) {
      EXPECT_TRUE(Logged(rank, absl::StrCat("send 5 to ", peer)));
      EXPECT_TRUE(Logged(rank, absl::StrCat("receive 5 from ", peer)));
    }
    EXPECT_TRUE(Logged(rank, "launch of a group of 4"));
  }
}

TEST_F(NcclGroupTest, ChannelsCarryMessagesInOrderBesideTheGroup) {
  ExpectAll(RunRanks(3, {},
                     [](auto& group, auto& device, auto& stream) {
                       return CheckChannels({group, stream, device});
                     }),
            absl::StatusCode::kOk);
  EXPECT_TRUE(Logged(2, "split") && Logged(2, "broadcast 5000"));
}

TEST_F(NcclGroupTest, ASilentSenderIsNamedAtTheTimeout) {
  std::latch receiver_ends(1);
  const auto statuses = RunRanks(
      3, {.timeout = absl::Seconds(1)}, [&](auto& group, auto& device, auto& stream) -> absl::Status {
        const ChannelOr channel = ConnectChannel({group, stream, device}, 1, 2);
        return UnlessSilent(group.rank() != 2, receiver_ends, [&]() -> absl::Status {
          PSRING_RETURN_IF_ERROR(channel.status());
          const Buffer memory = *device.Allocate(1000 * sizeof(float));
          PSRING_RETURN_IF_ERROR((*channel)->Transfer(memory.span()));
          return (*channel)->lane().Synchronize();
        });
      });
  ExpectAll({statuses[2]}, absl::StatusCode::kDeadlineExceeded,
            {"rank 2: nccl broadcast of 1000 float32 elements", "rank 1 has not joined it"});
}

TEST_F(NcclGroupTest, AMissingRankAbortsTheOthersAtTheTimeout) {
  std::latch others_end(2);
  const auto statuses =
      RunRanks(3, {.timeout = absl::Milliseconds(300)}, [&](auto& group, auto& device, auto& stream) {
        return UnlessSilent(group.rank() == 2, others_end, [&] { return AddOnes(group, device, stream); });
      });
  for (const int survivor : {0, 1}) {
    ExpectAll({statuses[survivor]}, absl::StatusCode::kDeadlineExceeded,
              {"all_reduce of 100 float32 elements"});
    EXPECT_TRUE(Logged(survivor, "abort")) << absl::StrJoin(nccl_.Log(survivor), ", ");
    EXPECT_FALSE(Logged(survivor, "destroy"));
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
    ExpectAll({statuses[survivor]}, absl::StatusCode::kUnavailable,
              {"remote process exited", absl::StrCat("rank ", survivor)});
    EXPECT_TRUE(Logged(survivor, "abort"));
  }
}

TEST_F(NcclGroupTest, AnAbortFromAnotherThreadEndsAWaitingCall) {
  std::latch other_ends(1);
  const auto statuses = RunRanks(2, {}, [&](auto& group, auto& device, auto& stream) {
    return UnlessSilent(group.rank() == 1, other_ends, [&] {
      std::thread other([&] {
        WaitForCall(0);
        group.Abort(absl::CancelledError("the user has stopped it"));
      });
      const absl::Status status = AddOnes(group, device, stream);
      other.join();
      return status;
    });
  });
  EXPECT_THAT(statuses[0].message(), Has("the user has stopped it"));
  EXPECT_TRUE(Logged(0, "abort"));
}

TEST_F(NcclGroupTest, CommunicatorsThatDoNotConnectAreAbortedAtTheTimeout) {
  nccl_.Set("init_hangs", 1);
  ExpectAll(RunRanks(2, {.timeout = absl::Milliseconds(200)}, AddOnes), absl::StatusCode::kDeadlineExceeded,
            {"the other ranks' communicators was not done after 200ms"});
  EXPECT_TRUE(Logged(0, "abort") && Logged(1, "abort"));
}

TEST_F(NcclGroupTest, AnOlderNcclIsRejectedWithBothVersions) {
  nccl_.Set("version", 21005);
  ExpectAll(RunRanks(2, {}, AddOnes), absl::StatusCode::kFailedPrecondition,
            {"this machine's NCCL is 2.10.5, and this build needs 2."});
  EXPECT_EQ(nccl_.Log(0), Lines());
}

TEST_F(NcclGroupTest, RanksWithDifferentVersionsReportBoth) {
  nccl_.Set("version", 29000);
  nccl_.Set("later_version", 29105);
  ExpectAll(RunRanks(2, {}, AddOnes), absl::StatusCode::kFailedPrecondition, {"2.90.0", "2.91.5"});
}

TEST_F(NcclGroupTest, VariablesAreSetOnlyDuringInitialisation) {
  ExpectAll(RunRanks(2, {.algorithm = "ring", .transport = "tcp"},
                     [](auto& group, auto& device, auto& stream) {
                       EXPECT_EQ(group.info().algorithm, "ring");
                       EXPECT_THAT(group.info().transport, testing::EndsWith(" tcp"));
                       EXPECT_EQ(group.info().wires, Lines{"NCCL over sockets"});
                       return AddOnes(group, device, stream);
                     }),
            absl::StatusCode::kOk);
  for (int rank = 0; rank < 2; ++rank) {
    for (const char* variable : {"NCCL_ALGO=Ring", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1",
                                 "NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME==lo"}) {
      EXPECT_TRUE(Logged(rank, variable)) << variable;
    }
  }
  EXPECT_EQ(getenv("NCCL_ALGO"), nullptr) << "only during initialization";
}

TEST_F(NcclGroupTest, OneProcessHasOneSetOfRestrictions) {
  for (const auto& [first, second] : {std::pair("auto", "tcp"), {"tcp", "auto"}}) {
    ForgetForThisProcess();
    ExpectAll(RunRanks(2, {.transport = first}, AddOnes), absl::StatusCode::kOk);
    nccl_.Reset();
    ExpectAll(RunRanks(2, {.transport = second}, AddOnes), absl::StatusCode::kFailedPrecondition,
              {"NCCL reads its settings once per process"});
    EXPECT_EQ(nccl_.Log(0), Lines()) << "no communicator with other settings than it says";
    // NCCL_ALGO is read for every communicator.
    ExpectAll(RunRanks(2, {.algorithm = "ring", .transport = first}, AddOnes), absl::StatusCode::kOk);
  }
}

TEST_F(NcclGroupTest, ThreadsOfOneProcessOnOneGpuAreRejectedWithARemedy) {
  ExpectAll(RunRanks(2, {}, AddOnes, /*one_gpu=*/true), absl::StatusCode::kFailedPrecondition,
            {"ranks 0 and 1 are threads of one process on one GPU", "--backend native"});
}

}  // namespace
}  // namespace psring
