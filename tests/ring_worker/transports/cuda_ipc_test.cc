// Our schedules between GPUs, with threads as ranks on the fake CUDA runtime (tests/common/cuda/fake_cuda.h),
// whose device memory the host cannot access. Ranks act as threads of one process, or as separate processes
// that open each other's handles.
#include "ring_worker/transports/cuda/cuda_ipc.h"

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_stream.h"
#include "common/devices/make_device.h"
#include "ring_worker/groups/groups.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "tests/ring_worker/groups/group_checks.h"
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

// A rank.
struct Here {
  ProcessGroup& group;
  Device& device;
  Stream& stream;
};

// Values in a GPU's memory, written and read by the host through copies.
class OnGpu {
 public:
  OnGpu(const Here& here, DType type, size_t count, bool registered)
      : here_(here),
        type_(type),
        count_(count),
        registered_(registered),
        memory_(*here.device.AllocateShared(count * SizeOf(type))) {
    if (registered_) {
      EXPECT_EQ(registration().Register(memory_), absl::OkStatus());
    }
  }
  ~OnGpu() {
    if (registered_) registration().Unregister(memory_);
  }

  Span span() const { return {memory_.data(), count_, type_}; }

  void Fill(size_t first, size_t count, const std::function<float(size_t)>& value) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = value(i);
    std::vector<char> bytes(count * SizeOf(type_));
    cpu::Convert(DType::kFloat32, values.data(), type_, bytes.data(), count);
    here_.stream.Copy(span().Slice(first, count).data, bytes.data(), bytes.size());
    EXPECT_EQ(here_.stream.Synchronize(), absl::OkStatus());
  }
  std::vector<float> Values() const {
    std::vector<char> bytes(count_ * SizeOf(type_));
    here_.stream.Copy(bytes.data(), memory_.data(), bytes.size());
    EXPECT_EQ(here_.stream.Synchronize(), absl::OkStatus());
    std::vector<float> values(count_);
    cpu::Convert(type_, bytes.data(), DType::kFloat32, values.data(), count_);
    return values;
  }

 private:
  MemoryRegistration& registration() const { return dynamic_cast<MemoryRegistration&>(here_.group); }

  const Here here_;
  const DType type_;
  const size_t count_;
  const bool registered_;
  const Buffer memory_;
};

using Body = std::function<absl::Status(const Here& here)>;

std::vector<absl::Status> RunToStatus(const Ranks& ranks, const Body& body) {
  TheFakeCuda().devices = ranks.gpus;
  const auto store = std::make_shared<FakeStore>();
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks.count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks.count; ++rank) {
    threads.emplace_back([&, rank] {
      FakeRendezvous rendezvous(store, rank, ranks.count);
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
      statuses[static_cast<size_t>(rank)] = body({**group, *device, *stream});
    });
  }
  for (std::thread& thread : threads) thread.join();
  TheFakeCuda().devices = 1;
  return statuses;
}

void RunRanks(const Ranks& ranks, const Body& body) {
  const std::vector<absl::Status> statuses = RunToStatus(ranks, body);
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_EQ(statuses[rank], absl::OkStatus()) << "rank " << rank;
  }
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

void ExpectValues(const std::vector<float>& got, size_t first, float slack,
                  const std::function<float(size_t)>& wanted, const std::string& what) {
  for (size_t i = first; i < got.size(); ++i) {
    const float value = wanted(i);
    ASSERT_NEAR(got[i], value, slack * std::max(1.0f, std::abs(value))) << what << ", element " << i;
  }
}

// Every collective of `count` elements per rank, in place and out of place.
absl::Status UseAll(const Here& here, DType type, ReduceOp op, size_t count, bool registered) {
  ProcessGroup& group = here.group;
  const int ranks = group.size(), me = group.rank();
  const size_t all = count * static_cast<size_t>(ranks), own = count * static_cast<size_t>(me);
  const std::string what =
      absl::StrCat("rank ", me, " of ", ranks, ", ", Name(op), " of ", count, " ", Name(type));
  const float slack = op != ReduceOp::kMean ? 0 : type == DType::kFloat32 ? 1e-6f : .01f;
  const auto mine = [&](size_t i) { return TestValue(me, i); };
  const auto reduced = [&](size_t i) { return Expected(op, ranks, i); };
  OnGpu a(here, type, all, registered), b(here, type, all, registered);
  Stream& stream = here.stream;

  for (const bool in_place : {false, true}) {
    a.Fill(0, all, mine);
    OnGpu& out = in_place ? a : b;
    PSRING_RETURN_IF_ERROR(group.AllReduce(a.span(), out.span(), op, stream));
    ExpectValues(out.Values(), 0, slack, reduced, what + ", all_reduce");
    if (!in_place) ExpectValues(a.Values(), 0, 0, mine, what + ", the input");
  }
  for (const bool in_place : {false, true}) {
    a.Fill(0, all, mine);
    const Span out = in_place ? a.span().Slice(own, count) : b.span().Slice(0, count);
    PSRING_RETURN_IF_ERROR(group.ReduceScatter(a.span(), out, op, stream));
    const std::vector<float> got = in_place ? a.Values() : b.Values();
    const size_t at = in_place ? own : 0;
    ExpectValues(
        {got.begin() + long(at), got.begin() + long(at + count)}, 0, slack,
        [&](size_t i) { return reduced(own + i); }, what + ", reduce_scatter");
    if (in_place) {
      ExpectValues({got.begin(), got.begin() + long(own)}, 0, 0, mine, what + ", the rest of the input");
    }
  }
  for (const bool in_place : {false, true}) {
    OnGpu& in = in_place ? b : a;
    b.Fill(0, all, [](size_t) { return -9.0f; });
    in.Fill(in_place ? own : 0, count, mine);
    PSRING_RETURN_IF_ERROR(group.AllGather(in.span().Slice(in_place ? own : 0, count), b.span(), stream));
    ExpectValues(
        b.Values(), 0, 0, [&](size_t i) { return TestValue(static_cast<int>(i / count), i % count); },
        what + ", all_gather");
  }
  const int root = ranks - 1;
  a.Fill(0, all, mine);
  PSRING_RETURN_IF_ERROR(group.Broadcast(a.span(), root, stream));
  ExpectValues(
      a.Values(), 0, 0, [&](size_t i) { return TestValue(root, i); }, what + ", broadcast");
  // Peers may still read the memory before this.
  PSRING_RETURN_IF_ERROR(group.Barrier(stream));
  return stream.Synchronize();
}

TEST_P(CudaIpcTest, EveryCollectiveIsExactForEveryRankCountSizeTypeAndOp) {
  const DType types[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax};
  for (const int count : processes() ? std::vector{3} : std::vector{1, 2, 5}) {
    SCOPED_TRACE(absl::StrCat(count, " ranks"));
    RunRanks(Of(count, /*gpus=*/count % 2 == 0 ? count : 1), [&](const Here& here) {
      int turn = count;  // the same on all ranks
      for (const size_t elements : {size_t{1}, size_t{3}, size_t{1000}}) {
        for (int half = 0; half < 2; ++half) {
          PSRING_RETURN_IF_ERROR(UseAll(here, types[turn % 3], ops[turn % 4], elements, turn % 5 != 0));
          ++turn;
        }
      }
      const OnGpu nothing(here, DType::kFloat32, 0, true);
      return here.group.AllReduce(nothing.span(), nothing.span(), ReduceOp::kSum, here.stream);
    });
  }
}

TEST_P(CudaIpcTest, SegmentsOfLongBuffersGiveTheSameBits) {
  std::map<size_t, std::vector<float>> sums;  // by segment size
  for (const size_t segment_bytes : {size_t{0}, size_t{6000}, size_t{20000}}) {
    Ranks ranks = Of(3, 1);
    ranks.segment_bytes = segment_bytes;
    RunRanks(ranks, [&](const Here& here) {
      constexpr size_t kCount = 30011;  // more than one segment, and prime
      for (const bool registered : {true, false}) {
        OnGpu values(here, DType::kFloat32, kCount, registered);
        values.Fill(0, kCount, [&](size_t i) {
          return 1.0f / static_cast<float>(1 + here.group.rank() + static_cast<int>(i % 1009));
        });
        PSRING_RETURN_IF_ERROR(
            here.group.AllReduce(values.span(), values.span(), ReduceOp::kSum, here.stream));
        const std::vector<float> sum = values.Values();
        if (here.group.rank() == 2) {
          const auto [first, is_new] = sums.try_emplace(segment_bytes, sum);
          EXPECT_EQ(sum, first->second) << "registered or not";
        }
        PSRING_RETURN_IF_ERROR(here.group.Barrier(here.stream));
        PSRING_RETURN_IF_ERROR(here.stream.Synchronize());
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
  RunRanks(ranks, [&](const Here& here) {
    constexpr size_t kCount = 20011;
    OnGpu values(here, DType::kFloat32, kCount, true);
    values.Fill(0, kCount, [&](size_t i) { return TestValue(here.group.rank(), i); });
    // Each call reads what the previous one wrote, which peers may still read.
    for (int call = 0; call < 4; ++call) {
      PSRING_RETURN_IF_ERROR(
          here.group.AllReduce(values.span(), values.span(), ReduceOp::kMean, here.stream));
    }
    ExpectValues(
        values.Values(), 0, 1e-5f, [](size_t i) { return Expected(ReduceOp::kMean, 3, i); }, "mean of means");
    PSRING_RETURN_IF_ERROR(here.group.Barrier(here.stream));
    return here.stream.Synchronize();
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
  RunRanks({.count = 2, .processes = true}, [&](const Here& here) {
    const auto other = here.device.NewStream(StreamKind::kBackground, "other");
    constexpr size_t kCount = 40000;
    OnGpu values(here, DType::kFloat32, kCount, false);  // copied into blocks, which are reused
    for (int call = 0; call < 8; ++call) {
      Stream& stream = call % 2 == 0 ? here.stream : *other;
      values.Fill(0, kCount, [&](size_t i) { return TestValue(here.group.rank() + call, i); });
      PSRING_RETURN_IF_ERROR(here.group.AllReduce(values.span(), values.span(), ReduceOp::kSum, stream));
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
      ExpectValues(
          values.Values(), 0, 0, [&](size_t i) { return TestValue(call, i) + TestValue(call + 1, i); },
          absl::StrCat("call ", call));
      if (::testing::Test::HasFatalFailure()) return absl::InternalError("see above");
    }
    return absl::OkStatus();
  });
}

TEST_F(CudaIpc, PayloadIsThatOfTheSchedule) {
  RunRanks({.count = 4}, [&](const Here& here) {
    constexpr size_t kCount = 4 * 30000;
    OnGpu values(here, DType::kFloat32, kCount, true);
    PSRING_RETURN_IF_ERROR(here.group.AllReduce(values.span(), values.span(), ReduceOp::kSum, here.stream));
    PSRING_RETURN_IF_ERROR(here.stream.Synchronize());
    EXPECT_EQ(here.group.traffic().payload_tx_bytes, 2 * 3 * kCount / 4 * sizeof(float));
    EXPECT_EQ(here.group.traffic().payload_rx_bytes, 2 * 3 * kCount / 4 * sizeof(float));
    return absl::OkStatus();
  });
}

TEST_F(CudaIpc, ScratchIsFreedWhenNoPeerHasItOpen) {
  for (const int count : {2, 4}) {
    RunRanks({.count = count, .processes = true}, [&](const Here& here) {
      const size_t part = 3000, all = part * static_cast<size_t>(here.group.size());
      OnGpu in(here, DType::kFloat32, all, false), out(here, DType::kFloat32, part, false);
      PSRING_RETURN_IF_ERROR(here.group.ReduceScatter(in.span(), out.span(), ReduceOp::kSum, here.stream));
      return here.stream.Synchronize();
    });
  }
  EXPECT_EQ(TheFakeCuda().freed_while_open, 0);
}

TEST_F(CudaIpc, AMissingPeerIsNamedAtTheTimeout) {
  std::latch others_end(2);
  const auto statuses =
      RunToStatus({.count = 3, .timeout = absl::Milliseconds(300)}, [&](const Here& here) -> absl::Status {
        OnGpu values(here, DType::kFloat32, 1000, true);
        if (here.group.rank() == 1) {
          others_end.wait();
          return absl::OkStatus();
        }
        const absl::Cleanup ended = [&] { others_end.count_down(); };
        PSRING_RETURN_IF_ERROR(
            here.group.AllReduce(values.span(), values.span(), ReduceOp::kSum, here.stream));
        return here.stream.Synchronize();
      });
  EXPECT_TRUE(absl::StrContains(statuses[2].message(), "for rank 1 to send")) << statuses[2];
  // Its own timeout may be the first, because rank 2 does not send either.
  EXPECT_TRUE(absl::StrContains(statuses[0].message(), "rank 2")) << statuses[0];
}

TEST_F(CudaIpc, AnAbortEndsAllCallsWithTheReason) {
  std::latch others_enqueued(2);
  const auto statuses = RunToStatus({.count = 3}, [&](const Here& here) -> absl::Status {
    OnGpu values(here, DType::kFloat32, 1000, true);
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
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(absl::StrContains(statuses[rank].message(), "the user has stopped it")) << statuses[rank];
  }
}

TEST_F(CudaIpc, DifferentCallsAreBothReported) {
  const auto statuses = RunToStatus({.count = 2}, [&](const Here& here) -> absl::Status {
    OnGpu values(here, DType::kFloat32, 1000, true);
    const Span part = values.span().Slice(0, here.group.rank() == 0 ? 1000 : 999);
    PSRING_RETURN_IF_ERROR(here.group.AllReduce(part, part, ReduceOp::kSum, here.stream));
    return here.stream.Synchronize();
  });
  const std::string said = absl::StrCat(statuses[0].ToString(), statuses[1].ToString());
  EXPECT_TRUE(absl::StrContains(said, "of 1000 float32") && absl::StrContains(said, "of 999 float32"))
      << said;
}

TEST_F(CudaIpc, AHostStreamIsRejected) {
  RunRanks({.count = 2}, [&](const Here& here) -> absl::Status {
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
    const auto store = std::make_shared<FakeStore>();
    std::vector<absl::StatusOr<GroupInfo>> infos(gpus.size(), absl::UnknownError("did not run"));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
      threads.emplace_back([&, rank] {
        FakeRendezvous rendezvous(store, static_cast<int>(rank), static_cast<int>(gpus.size()));
        const auto group =
            MakeProcessGroup(rendezvous, {.algorithm = "ring", .transport = transport, .gpu = gpus[rank]});
        infos[rank] = group.ok() ? absl::StatusOr<GroupInfo>((*group)->info()) : group.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
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
  const auto refused = Infos({0, 1}, "cuda_ipc")[1].status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "has no peer access")) << refused;
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

TEST_F(CudaIpc, ProcessesUseHostMemoryIfHandlesCannotBeOpened) {
  TheFakeCuda().handles_open = false;
  const auto store = std::make_shared<FakeStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      FakeRendezvous rendezvous(store, rank, 2);
      const auto reach = FindGpuReach(rendezvous, 0, absl::StrCat("process ", rank));
      ASSERT_TRUE(reach.ok()) << reach.status();
      EXPECT_TRUE(absl::StrContains(reach->why_not, "cudaIpcOpenMemHandle")) << reach->why_not;
    });
  }
  for (std::thread& thread : threads) thread.join();
  TheFakeCuda().handles_open = true;
}

TEST_F(CudaIpc, GpusThatReadWrongValuesAreNotUsed) {
  TheFakeCuda().opens_wrong_memory = true;
  const auto store = std::make_shared<FakeStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      FakeRendezvous rendezvous(store, rank, 2);
      const auto reach = FindGpuReach(rendezvous, 0, absl::StrCat("process ", rank));
      ASSERT_TRUE(reach.ok()) << reach.status();
      EXPECT_TRUE(absl::StrContains(reach->why_not, "it reads other values than were written there"))
          << reach->why_not;
    });
  }
  for (std::thread& thread : threads) thread.join();
  TheFakeCuda().opens_wrong_memory = false;
}

}  // namespace
}  // namespace psring
