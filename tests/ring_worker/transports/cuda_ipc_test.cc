// Our schedules between GPUs, with threads as ranks on the fake CUDA runtime (tests/common/cuda/fake_cuda.h),
// whose device memory the host cannot access. Ranks act as threads of one process, or as separate processes
// that open each other's handles.
#include "ring_worker/transports/cuda/cuda_ipc.h"

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_stream.h"
#include "common/device_factory/make_device.h"
#include "ring_worker/groups/groups.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/has.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "tests/ring_worker/groups/channel_checks.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

// Before anything else: pointers of other ranks are invalid.
const bool kOpensElsewhere = TheFakeCuda().opens_elsewhere = true;

struct Ranks {
  int count = 2;
  int gpus = 1;            // ranks take them in turn
  bool processes = false;  // each rank is one
  std::string algorithm = "ring";
  size_t segment_bytes = 0;
  absl::Duration timeout = absl::Seconds(30);
  StreamKind stream = StreamKind::kBackground;
};

using Body = std::function<absl::Status(const GroupRank& here)>;

std::vector<absl::Status> RunToStatus(const Ranks& ranks, const Body& body) {
  TheFakeCuda().devices = ranks.gpus;
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks.count));
  OnRanks(ranks.count, [&](FakeRendezvous& rendezvous, int rank) {
    const int gpu = rank % ranks.gpus;
    auto reach =
        FindGpuReach(rendezvous, gpu, ranks.processes ? absl::StrCat("process ", rank) : ThisProcess());
    ASSERT_TRUE(reach.ok()) << reach.status();
    ASSERT_EQ(reach->why_not, "");
    EXPECT_EQ(reach->shares_gpu, ranks.count > ranks.gpus);
    CudaIpcParts parts{.gpu = gpu, .reach = *reach, .timeout = ranks.timeout};
    parts.exports = *MakeMeshTransport(rendezvous, {.first_peers = EveryPeer});
    parts.releases = *MakeMeshTransport(rendezvous, {.first_peers = EveryPeer});
    auto transport = MakeCudaIpcTransport(std::move(parts));
    ASSERT_TRUE(transport.ok()) << transport.status();
    auto group = MakeScheduledGroup(
        *std::move(transport),
        {.algorithm = ranks.algorithm, .timeout = ranks.timeout, .segment_bytes = ranks.segment_bytes});
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_TRUE((*group)->info().on_gpu);
    const auto device = *MakeDevice(absl::StrCat("cuda:", gpu));
    const auto stream = device->NewStream(ranks.stream, "test");
    statuses[static_cast<size_t>(rank)] = body({**group, *stream, *device});
  });
  TheFakeCuda().devices = 1;
  return statuses;
}

void RunRanks(const Ranks& ranks, const Body& body) {
  const std::vector<absl::Status> statuses = RunToStatus(ranks, body);
  for (size_t rank = 0; rank < statuses.size(); ++rank)
    EXPECT_EQ(statuses[rank], absl::OkStatus()) << "rank " << rank;
}

absl::Status AddUp(const GroupRank& here, const Span& data) {
  PSRING_RETURN_IF_ERROR(here.group.AllReduce(data, data, ReduceOp::kSum, here.stream));
  return here.stream.Synchronize();
}

class CudaIpc : public testing::Test {
 protected:
  ~CudaIpc() override { EXPECT_EQ(TheFakeCuda().opened, 0) << "all opened handles are closed"; }
};

// {ranks are processes, algorithm}
class CudaIpcTest : public CudaIpc, public testing::WithParamInterface<std::tuple<bool, std::string>> {
 protected:
  bool processes() const { return std::get<0>(GetParam()); }
  Ranks Of(int count, int gpus) const {
    return {.count = count,
            .gpus = gpus,
            .processes = std::get<0>(GetParam()),
            .algorithm = std::get<1>(GetParam())};
  }
};

TEST_P(CudaIpcTest, EveryCollectiveIsExactForEveryRankCountSizeTypeAndOp) {
  for (const int count : processes() ? std::vector{3} : std::vector{1, 2, 5}) {
    SCOPED_TRACE(absl::StrCat(count, " ranks"));
    RunRanks(Of(count, /*gpus=*/count % 2 == 0 ? count : 1), [&](const GroupRank& here) {
      int turn = count;  // the same on all ranks
      for (const size_t elements : {size_t{1}, size_t{3}, size_t{1000}}) {
        for (int half = 0; half < 2; ++half) {
          PSRING_RETURN_IF_ERROR(
              CheckCollectives(here, elements, kDTypes[turn % 3], kReduceOps[turn % 4], turn % 5 != 0));
          ++turn;
        }
      }
      return CheckAllReduce(here, 0, DType::kFloat32, ReduceOp::kSum, true);
    });
  }
}

TEST_P(CudaIpcTest, SegmentsOfLongBuffersGiveTheSameBits) {
  std::map<size_t, std::vector<float>> sums;  // by segment size
  for (const size_t segment_bytes : {size_t{0}, size_t{6000}, size_t{20000}}) {
    Ranks ranks = Of(3, 1);
    ranks.segment_bytes = segment_bytes;
    RunRanks(ranks, [&](const GroupRank& here) {
      constexpr size_t kCount = 30011;  // more than one segment, and prime
      for (const bool registered : {true, false}) {
        TestMemory values(here, DType::kFloat32, kCount, registered);
        PSRING_RETURN_IF_ERROR(values.Fill(0, kCount, [&](size_t i) {
          return 1.0f / static_cast<float>(1 + here.group.rank() + static_cast<int>(i % 1009));
        }));
        PSRING_RETURN_IF_ERROR(
            here.group.AllReduce(values.span(), values.span(), ReduceOp::kSum, here.stream));
        PSRING_ASSIGN_OR_RETURN(const std::vector<float> sum, values.Values(0, kCount));
        if (here.group.rank() == 2) {
          const auto [first, is_new] = sums.try_emplace(segment_bytes, sum);
          EXPECT_EQ(sum, first->second) << "registered or not";
        }
        PSRING_RETURN_IF_ERROR(AwaitPeers(here));
      }
      return absl::OkStatus();
    });
  }
  for (const auto& [segment_bytes, sum] : sums) EXPECT_EQ(sum, sums.begin()->second) << segment_bytes;
}

TEST_P(CudaIpcTest, CallsInARowNeedNoSynchronisation) {
  Ranks ranks = Of(3, 3);
  ranks.stream = processes() ? StreamKind::kCompute : StreamKind::kBackground;
  ranks.segment_bytes = 8192;
  RunRanks(ranks, [&](const GroupRank& here) {
    constexpr size_t kCount = 20011;
    TestMemory values(here, DType::kFloat32, kCount, true);
    PSRING_RETURN_IF_ERROR(values.Fill(0, kCount, [&](size_t i) { return TestValue(here.group.rank(), i); }));
    // Each call reads what the previous one wrote, which peers may still read.
    for (int call = 0; call < 4; ++call) {
      PSRING_RETURN_IF_ERROR(
          here.group.AllReduce(values.span(), values.span(), ReduceOp::kMean, here.stream));
    }
    PSRING_RETURN_IF_ERROR(values.Expect(
        0, kCount, 1e-5f, [](size_t i) { return Expected(ReduceOp::kMean, 3, i); }, "mean of means"));
    return AwaitPeers(here);
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaIpcTest,
                         testing::Combine(testing::Bool(),
                                          testing::ValuesIn(AlgorithmsFor(Collective::kAllReduce))),
                         [](const auto& info) {
                           std::string name = std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (std::get<0>(info.param) ? "_processes" : "_threads");
                         });

TEST_F(CudaIpc, CallsOnDifferentStreamsKeepTheirOrder) {
  RunRanks({.count = 2, .processes = true}, [&](const GroupRank& here) {
    const auto other = here.device.NewStream(StreamKind::kBackground, "other");
    constexpr size_t kCount = 40000;
    TestMemory values(here, DType::kFloat32, kCount, false);  // copied into blocks, which are reused
    for (int call = 0; call < 8; ++call) {
      Stream& stream = call % 2 == 0 ? here.stream : *other;
      PSRING_RETURN_IF_ERROR(
          values.Fill(0, kCount, [&](size_t i) { return TestValue(here.group.rank() + call, i); }));
      PSRING_RETURN_IF_ERROR(here.group.AllReduce(values.span(), values.span(), ReduceOp::kSum, stream));
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
      PSRING_RETURN_IF_ERROR(values.Expect(
          0, kCount, 0, [&](size_t i) { return TestValue(call, i) + TestValue(call + 1, i); },
          absl::StrCat("call ", call)));
    }
    return absl::OkStatus();
  });
}

TEST_F(CudaIpc, PayloadIsThatOfTheSchedule) {
  RunRanks({.count = 4}, [&](const GroupRank& here) {
    constexpr size_t kCount = 4 * 30000;
    TestMemory values(here, DType::kFloat32, kCount, true);
    PSRING_RETURN_IF_ERROR(AddUp(here, values.span()));
    EXPECT_EQ(here.group.traffic().payload_tx_bytes, 2 * 3 * kCount / 4 * sizeof(float));
    EXPECT_EQ(here.group.traffic().payload_rx_bytes, 2 * 3 * kCount / 4 * sizeof(float));
    return absl::OkStatus();
  });
}

TEST_F(CudaIpc, ScratchIsFreedWhenNoPeerHasItOpen) {
  for (const int count : {2, 4})
    RunRanks({.count = count, .processes = true}, [&](const GroupRank& here) {
      const size_t part = 3000, all = part * static_cast<size_t>(here.group.size());
      TestMemory in(here, DType::kFloat32, all, false), out(here, DType::kFloat32, part, false);
      PSRING_RETURN_IF_ERROR(here.group.ReduceScatter(in.span(), out.span(), ReduceOp::kSum, here.stream));
      return here.stream.Synchronize();
    });
  EXPECT_EQ(TheFakeCuda().freed_while_open, 0);
}

TEST_F(CudaIpc, AMissingPeerIsNamedAtTheTimeout) {
  std::latch others_end(2);
  const auto statuses =
      RunToStatus({.count = 3, .timeout = absl::Milliseconds(300)}, [&](const GroupRank& here) {
        TestMemory values(here, DType::kFloat32, 1000, true);
        return UnlessSilent(here.group.rank() == 1, others_end, [&] { return AddUp(here, values.span()); });
      });
  EXPECT_THAT(statuses[2].message(), Has("for rank 1 to send"));
  // Its own timeout may be the first, because rank 2 does not send either.
  EXPECT_THAT(statuses[0].message(), Has("rank 2"));
}

TEST_F(CudaIpc, AnAbortEndsAllCallsWithTheReason) {
  std::latch others_enqueued(2);
  const auto statuses = RunToStatus({.count = 3}, [&](const GroupRank& here) -> absl::Status {
    TestMemory values(here, DType::kFloat32, 1000, true);
    if (here.group.rank() == 1) {
      others_enqueued.wait();
      here.group.Abort(absl::CancelledError("the user has stopped it"));
      return absl::OkStatus();
    }
    const absl::Status enqueued =
        here.group.AllReduce(values.span(), values.span(), ReduceOp::kSum, here.stream);
    others_enqueued.count_down();
    PSRING_RETURN_IF_ERROR(enqueued);
    return here.stream.Synchronize();
  });
  for (const int rank : {0, 2}) EXPECT_THAT(statuses[rank].message(), Has("the user has stopped it"));
}

TEST_F(CudaIpc, DifferentCallsAreBothReported) {
  const auto statuses = RunToStatus({.count = 2}, [&](const GroupRank& here) -> absl::Status {
    TestMemory values(here, DType::kFloat32, 1000, true);
    const Span part = values.span().Slice(0, here.group.rank() == 0 ? 1000 : 999);
    return AddUp(here, part);
  });
  const std::string said = absl::StrCat(statuses[0].ToString(), statuses[1].ToString());
  EXPECT_THAT(said, Has("of 1000 float32", "of 999 float32"));
}

TEST_F(CudaIpc, AHostStreamIsRejected) {
  RunRanks({.count = 2}, [&](const GroupRank& here) -> absl::Status {
    const auto host = MakeCpuDevice()->NewStream(StreamKind::kCompute, "host");
    float value = 1;
    EXPECT_EQ(here.group.AllReduce({&value, 1}, {&value, 1}, ReduceOp::kSum, *host), absl::OkStatus());
    EXPECT_EQ(host->Synchronize().code(), absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  });
}

// What MakeProcessGroup chooses.
class Choice : public CudaIpc {
 protected:
  std::vector<absl::StatusOr<GroupInfo>> Infos(const std::vector<int>& gpus, const std::string& transport) {
    std::vector<absl::StatusOr<GroupInfo>> infos(gpus.size(), absl::UnknownError("did not run"));
    OnRanks(static_cast<int>(gpus.size()), [&](FakeRendezvous& rendezvous, int rank) {
      const auto group =
          MakeProcessGroup(rendezvous, {.algorithm = "ring", .transport = transport, .gpu = gpus[rank]});
      infos[rank] = group.ok() ? absl::StatusOr<GroupInfo>((*group)->info()) : group.status();
    });
    return infos;
  }
  ~Choice() override {
    TheFakeCuda().devices = 1;
    TheFakeCuda().peers_reach = true;
  }
};

TEST_F(Choice, RanksWithConnectedGpusUseThem) {
  TheFakeCuda().devices = 2;
  for (const char* transport : {"auto", "cuda_ipc"}) {
    for (const auto& info : Infos({0, 1}, transport)) {
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_TRUE(info->on_gpu);
      EXPECT_EQ(info->transport, "cuda_peer");
      EXPECT_EQ(info->through_host, "");
    }
  }
  EXPECT_EQ(Infos({0, 0}, "auto")[1]->transport, "cuda_peer on shared GPUs");
}

TEST_F(Choice, ChannelsBetweenGpusCarryMessagesInOrderBesideTheGroup) {
  TheFakeCuda().devices = 3;
  OnRanks(3, [&](FakeRendezvous& rendezvous, int rank) {
    const auto device = *MakeDevice(absl::StrCat("cuda:", rank));
    const auto group = MakeProcessGroup(rendezvous, {.transport = "cuda_ipc", .gpu = rank});
    ASSERT_TRUE(group.ok()) << group.status();
    const auto stream = device->NewStream(StreamKind::kBackground, "test");
    EXPECT_EQ(CheckChannels({**group, *stream, *device}), absl::OkStatus());
  });
}

TEST_F(Choice, UnconnectedGpusUseHostMemoryAndReportTheReason) {
  TheFakeCuda().devices = 2;
  TheFakeCuda().peers_reach = false;
  for (const auto& info : Infos({0, 1}, "auto")) {
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_FALSE(info->on_gpu);
    EXPECT_EQ(info->transport, "shm");
    EXPECT_EQ(info->through_host,
              "rank 0's GPU does not reach rank 1's: cuda:0 has no peer access to cuda:1");
  }
  EXPECT_THAT(Infos({0, 1}, "cuda_ipc")[1].status(),
              Fails(absl::StatusCode::kFailedPrecondition, "has no peer access"));
}

TEST_F(Choice, AllUseHostMemoryIfOneRankHasNoGpu) {
  const auto infos = Infos({0, -1}, "auto");
  EXPECT_EQ(infos[0]->through_host, "rank 1 has no GPU");
  EXPECT_EQ(infos[1]->through_host, "") << "no reason without a GPU";
  EXPECT_EQ(infos[1]->transport, "shm");
}

TEST_F(Choice, RequestedTransportsAreUsed) {
  for (const char* transport : {"tcp", "shm"}) {
    for (const auto& info : Infos({0, 0}, transport)) {
      EXPECT_FALSE(info->on_gpu);
      EXPECT_EQ(info->transport, transport);
    }
  }
}

// Two processes whose GPUs do not reach each other, and why.
void ExpectNoReach(const std::string& why) {
  OnRanks(2, [&](FakeRendezvous& rendezvous, int rank) {
    const auto reach = FindGpuReach(rendezvous, 0, absl::StrCat("process ", rank));
    ASSERT_TRUE(reach.ok()) << reach.status();
    EXPECT_THAT(reach->why_not, Has(why));
  });
}

TEST_F(CudaIpc, ProcessesUseHostMemoryIfHandlesCannotBeOpened) {
  TheFakeCuda().handles_open = false;
  ExpectNoReach("cudaIpcOpenMemHandle");
  TheFakeCuda().handles_open = true;
}

TEST_F(CudaIpc, GpusThatReadWrongValuesAreNotUsed) {
  TheFakeCuda().opens_wrong_memory = true;
  ExpectNoReach("it reads other values than were written there");
  TheFakeCuda().opens_wrong_memory = false;
}

}  // namespace
}  // namespace psring
