// Errors about GPUs that are missing, unsuitable or failing, and no leaks of GPU resources, on a fake CUDA
// runtime (fake_cuda.h).
#include <gtest/gtest.h>

#include <latch>

#include "common/base/deadline.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda/cuda_stream.h"
#include "common/cuda/recorded_work.h"
#include "common/cuda_ops/cuda_ops.h"
#include "common/cuda_ops/gpu_scratch.h"
#include "common/device_factory/make_device.h"
#include "common/device_factory/make_ops.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/has.h"

namespace psring {
namespace {

class FakeCudaTest : public testing::Test {
 protected:
  void TearDown() override {
    TheFakeCuda().devices = 1;
    TheFakeCuda().driver_version = 13000;
    TheFakeCuda().kernels_fit = true;
    TheFakeCuda().architecture = 80;
    TheFakeCuda().launches_fail = false;
    TheFakeCuda().has_cudnn = true;
    TheFakeCuda().kernel_without_cudnn = 0;
    TheFakeCuda().memory = size_t{1} << 30;
  }
};

TEST_F(FakeCudaTest, AMissingDriverIsNamed) {
  TheFakeCuda().driver_version = 0;
  EXPECT_EQ(CudaDeviceCount(), 0);
  EXPECT_EQ(MakeDevice("auto").value()->name(), "cpu");
  EXPECT_THAT(MakeDevice("cuda").status().message(),
              Has("no CUDA device", "no NVIDIA driver", "--device cpu"));
}

TEST_F(FakeCudaTest, ErrorsThatWereReportedDoNotRemainTheLastError) {
  const auto device = *MakeDevice("cuda");
  EXPECT_FALSE(device->Allocate(TheFakeCuda().memory + 1).ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  TheFakeCuda().driver_version = 0;
  EXPECT_FALSE(MakeDevice("cuda").ok());
  EXPECT_EQ(CudaDeviceCount(), 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(FakeCudaTest, PollingAnEventIsNoErrorOfTheNextLaunch) {
  const auto device = *MakeDevice("cuda");
  const Buffer buffer = *device->Allocate(64);
  const auto stream = device->NewStream(StreamKind::kCompute, "test");
  std::latch go(1);
  CudaStream::From(*stream)->Enqueue("wait", [&](cudaStream_t queue) {
    OnFakeGpu(queue, [&] { go.wait(); });
    return absl::OkStatus();
  });
  const Event event = stream->Record();
  EXPECT_FALSE(event.Happened());
  stream->Zero(buffer.data(), buffer.bytes());
  go.count_down();
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
}

TEST_F(FakeCudaTest, ScratchRemainsUsableIfThereIsNoMemoryForMore) {
  const auto device = *MakeDevice("cuda");
  GpuScratch scratch(*device);
  const absl::StatusOr<void*> small = scratch.Reserve(1000);
  ASSERT_TRUE(small.ok() && *small != nullptr) << small.status();
  TheFakeCuda().memory = TheFakeCuda().used.load();
  EXPECT_EQ(scratch.Reserve(100'000).status().code(), absl::StatusCode::kResourceExhausted);
  const absl::StatusOr<void*> again = scratch.Reserve(1000);
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(*again, *small);
  TheFakeCuda().memory = size_t{1} << 30;
  EXPECT_TRUE(scratch.Reserve(100'000).ok());
}

TEST_F(FakeCudaTest, ADriverThatIsTooOldIsNamedWithBothVersions) {
  TheFakeCuda().driver_version = 12020;
  EXPECT_THAT(MakeDevice("cuda:0").status().message(), Has("no CUDA device", "CUDA 12.2", "needs 13.0"));
}

TEST_F(FakeCudaTest, AMissingGpuIsNamed) {
  TheFakeCuda().devices = 0;
  EXPECT_THAT(MakeDevice("cuda").status().message(), Has("no CUDA device", "no GPU"));
  TheFakeCuda().devices = 1;
  EXPECT_THAT(MakeDevice("cuda:1").status().message(), Has("cuda:1", "there is 1 GPU"));
  TheFakeCuda().devices = 3;
  EXPECT_EQ(CudaDeviceCount(), 3);
  EXPECT_THAT(MakeDevice("cuda:3").status().message(), Has("there are 3 GPUs", "cuda:0"));
  EXPECT_EQ(MakeDevice("cuda:2").value()->name(), "cuda:2");
  EXPECT_EQ(MakeDevice("cuda:2").value()->gpu(), 2);
  EXPECT_NE(MakeDevice("cuda:2").value()->unit(), MakeDevice("cuda:1").value()->unit());
}

TEST_F(FakeCudaTest, AGpuWithoutKernelsIsNamedWithItsArchitecture) {
  TheFakeCuda().kernels_fit = false;
  TheFakeCuda().architecture = 61;
  EXPECT_THAT(MakeDevice("cuda").status().message(),
              Has("architecture 61", "-DPSRING_CUDA_ARCHITECTURES=61"));
}

TEST_F(FakeCudaTest, AnUnsupportedPrecisionIsRejectedWithTheArchitecture) {
  const auto device = MakeDevice("cuda").value();
  TheFakeCuda().architecture = 75;
  EXPECT_THAT(MakeOps(*device, 1, Precision::kBFloat16).status().message(),
              Has("--precision bfloat16", "8.0 (Ampere)", "cuda:0 is of 7.5"));
  EXPECT_THAT(MakeOps(*device, 1, Precision::kTf32).status().message(), Has("--precision tf32", "7.5"));
  EXPECT_TRUE(MakeOps(*device, 1).ok());
  TheFakeCuda().architecture = 90;
  EXPECT_TRUE(MakeOps(*device, 1, Precision::kBFloat16).ok());
  EXPECT_TRUE(MakeOps(*device, 1, Precision::kTf32).ok());
}

TEST_F(FakeCudaTest, OutOfMemoryNamesRequestedAndFreeBytes) {
  const auto device = MakeDevice("cuda").value();
  const absl::StatusOr<Buffer> buffer = device->Allocate(size_t{1030} << 20);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(buffer.status().message(), Has("cuda:0", "1030.0 MiB", "1024.0 MiB of 1024.0 MiB are free"));
  EXPECT_TRUE(device->Allocate(1).ok());
}

TEST_F(FakeCudaTest, BuffersAreFreedAndOutliveTheirDevice) {
  ASSERT_EQ(TheFakeCuda().buffers, 0);
  {
    auto device = MakeDevice("cuda").value();
    const Buffer first = device->Allocate(1000).value(), second = device->AllocateOnHost(5000).value();
    const auto stream = device->NewStream(StreamKind::kBackground, "lane");
    device.reset();
    stream->Copy(first.data(), second.data(), 1000);
    EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
    EXPECT_EQ(TheFakeCuda().buffers, 1);
    EXPECT_GE(second.shared_fd(), 0) << "pinned memory is memory that others may map";
  }
  EXPECT_EQ(TheFakeCuda().buffers, 0);
}

TEST_F(FakeCudaTest, ALaunchThatFailsSurfacesAtSynchronizeWithItsCall) {
  for (const StreamKind kind : {StreamKind::kCompute, StreamKind::kBackground}) {
    const auto device = MakeDevice("cuda").value();
    const auto ops = MakeCudaOps(*device).value();
    const auto stream = device->NewStream(kind, "test");
    const Buffer a = device->Allocate(40).value(), b = device->Allocate(40).value();
    TheFakeCuda().launches_fail = true;
    ops->Add(a.span(), b.span(), *stream);
    stream->Copy(a.data(), b.data(), 40);
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(stream->Synchronize().message(), Has("cuda:0: add: launch: invalid configuration"));
    TheFakeCuda().launches_fail = false;
  }
}

// The name of the ops after a convolution forward and backward.
std::string NameAfterAConvolution(Precision precision, int kernel) {
  const auto device = MakeDevice("cuda").value();
  const auto ops = MakeOps(*device, 1, precision).value();
  const auto stream = device->NewStream(StreamKind::kCompute, "test");
  const ConvShape s{2, 6, 6, 3, 4, kernel, Activation::kRelu};
  const DType type = ActivationsOf(precision);
  const size_t positions = size_t(2) * s.out_height() * s.out_width();
  const Buffer x = device->Allocate(2 * 36 * 3 * SizeOf(type)).value(),
               dx = device->Allocate(2 * 36 * 3 * SizeOf(type)).value(),
               y = device->Allocate(positions * 4 * SizeOf(type)).value(),
               dy = device->Allocate(positions * 4 * SizeOf(type)).value(),
               weight = device->Allocate(size_t(12) * kernel * kernel * 4).value(),
               dweight = device->Allocate(size_t(12) * kernel * kernel * 4).value(),
               bias = device->Allocate(16).value(), dbias = device->Allocate(16).value();
  ConvolutionOps& convolution = *ops->families().convolution;
  convolution.Forward(s, x.span(type), weight.span(), bias.span(), y.span(type), *stream);
  convolution.BackwardInput(s, weight.span(), y.span(type), dy.span(type), dx.span(type), /*add=*/false,
                            dbias.span(), *stream);
  convolution.BackwardWeight(s, x.span(type), dy.span(type), dweight.span(), *stream);
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
  return ops->name();
}

TEST_F(FakeCudaTest, ConvolutionsUseTheLibraryIfItSupportsThem) {
  if (!ConvolutionLibrary().ok()) GTEST_SKIP() << ConvolutionLibrary().status().message();
  EXPECT_EQ(ConvolutionLibrary().value(), "cudnn 9.19.0");
  EXPECT_EQ(NameAfterAConvolution(Precision::kFloat32, 3),
            "cublaslt, cudnn 9.19.0 and gathered convolutions");
  EXPECT_EQ(NameAfterAConvolution(Precision::kTf32, 3),
            "cublaslt, tf32, cudnn 9.19.0 and gathered convolutions");
  EXPECT_EQ(NameAfterAConvolution(Precision::kBFloat16, 3),
            "cublaslt, bfloat16, cudnn 9.19.0 and gathered convolutions");
  TheFakeCuda().kernel_without_cudnn = 5;
  EXPECT_EQ(NameAfterAConvolution(Precision::kFloat32, 5), "cublaslt, gathered convolutions");
  TheFakeCuda().has_cudnn = false;
  EXPECT_EQ(NameAfterAConvolution(Precision::kFloat32, 3), "cublaslt, gathered convolutions");
  EXPECT_FALSE(ConvolutionLibrary().ok());
}

TEST_F(FakeCudaTest, RecordedWorkRunsOnlyWhenReplayed) {
  const auto device = MakeDevice("cuda").value();
  const auto ops = MakeUpdateOps(*device).value();
  const auto stream = device->NewStream(StreamKind::kCompute, "test");
  const Buffer sum = device->Allocate(4).value(), one = device->Allocate(4).value();
  const auto value = [&](const Buffer& memory) {
    float read = 0;
    stream->Copy(&read, memory.data(), 4);
    EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
    return read;
  };
  const float first = 1;
  stream->Copy(one.data(), &first, 4);
  ASSERT_EQ(BeginRecording(*stream), absl::OkStatus());
  ops->Add(sum.span(), one.span(), *stream);
  ops->Add(sum.span(), one.span(), *stream);
  const std::unique_ptr<RecordedWork> work = EndRecording(*stream).value();
  EXPECT_EQ(value(sum), 0);
  work->Replay();
  work->Replay();
  EXPECT_EQ(value(sum), 4);
  ASSERT_EQ(BeginRecording(*stream), absl::OkStatus());
  EXPECT_EQ(EndRecording(*stream).value(), nullptr) << "nothing was recorded";
}

TEST_F(FakeCudaTest, WorkThatCannotBeRecordedIsNamed) {
  const auto device = MakeDevice("cuda").value();
  const Buffer memory = device->Allocate(4).value();
  float host = 0;
  const Event before = device->NewStream(StreamKind::kCompute, "another")->Record();
  const auto lane = device->NewStream(StreamKind::kBackground, "lane");
  const std::pair<const char*, std::function<void(Stream&)>> cases[] = {
      {"host work", [](Stream& s) { s.Run([] { return absl::OkStatus(); }); }},
      {"a wait for unrecorded work", [&](Stream& s) { s.WaitFor(before); }},
      {"cannot wait for a point of recorded work",
       [](Stream& s) {
         const absl::Status awaited = s.Record().Wait(MonotonicNow() + absl::Seconds(20));
         CudaStream::From(s)->Enqueue("a wait", [awaited](cudaStream_t) { return awaited; });
       }},
      {"only compute streams take part",
       [&](Stream& s) {
         lane->WaitFor(s.Record());
         const absl::Status refused = lane->Synchronize();
         CudaStream::From(s)->Enqueue("a lane", [refused](cudaStream_t) { return refused; });
       }},
      {"a wait of the host", [](Stream& s) { (void)s.Synchronize(); }},
      {"cudaMemcpyAsync", [&](Stream& s) { s.Copy(memory.data(), &host, 4); }},
      {"cudaMalloc", [&](Stream& s) {
         CudaStream::From(s)->Enqueue("an op that needs memory",
                                      [&](cudaStream_t) { return device->Allocate(4).status(); });
       }}};
  for (const auto& [what, work] : cases) {
    const auto stream = device->NewStream(StreamKind::kCompute, "test");
    ASSERT_EQ(BeginRecording(*stream), absl::OkStatus());
    work(*stream);
    EXPECT_THAT(EndRecording(*stream).status().message(), Has("cuda:0", what));
    EXPECT_THAT(stream->Synchronize().message(), Has(what));
  }
  EXPECT_THAT(BeginRecording(*device->NewStream(StreamKind::kBackground, "lane")).message(),
              Has("compute stream"));
  EXPECT_THAT(BeginRecording(*MakeCpuDevice()->NewStream(StreamKind::kCompute, "cpu")).message(),
              Has("compute stream"));
}

// In both orders of unordered work (the fake runs both): another stream adds `b` to `sum`, after `b` is set
// and before it is doubled.
class RecordedStreams {
 public:
  void Enqueue(Stream& main, Stream& beside) {
    main.Copy(b_.data(), a_.data(), 4);
    main.Stamp(begin_ns_);
    beside.WaitFor(main.Record());
    ops_->Add(sum_.span(), b_.span(), beside);
    beside.Stamp(added_ns_);
    if (joins_) main.WaitFor(beside.Record());
    ops_->Add(sum_.span(), sum_.span(), main);
  }

  const std::unique_ptr<Device> device_ = MakeDevice("cuda").value();
  const std::unique_ptr<Stream> main_ = device_->NewStream(StreamKind::kCompute, "main"),
                                beside_ = device_->NewStream(StreamKind::kCompute, "beside");
  const std::unique_ptr<Ops> ops_ = MakeUpdateOps(*device_).value();
  const Buffer a_ = device_->Allocate(4).value(), b_ = device_->Allocate(4).value(),
               sum_ = device_->Allocate(4).value();
  bool joins_ = true;
  int64_t begin_ns_ = 0, added_ns_ = 0;
};

TEST_F(FakeCudaTest, OtherStreamsTakePartInARecordingBetweenTheirWaits) {
  RecordedStreams streams;
  std::unique_ptr<RecordedWork> work;
  float expected = 0;
  int64_t last_begin = 0, last_added = 0;
  for (int run = 0; run < 7; ++run) {
    const float value = static_cast<float>(run + 1);
    streams.main_->Copy(streams.a_.data(), &value, 4);
    if (run == 1) {
      ASSERT_EQ(BeginRecording(*streams.main_), absl::OkStatus());
      streams.Enqueue(*streams.main_, *streams.beside_);
      work = EndRecording(*streams.main_).value();
    }
    if (run > 0) {
      work->Replay();
    } else {
      streams.Enqueue(*streams.main_, *streams.beside_);
    }
    ASSERT_EQ(streams.beside_->Synchronize(), absl::OkStatus());
    float read = 0;
    streams.main_->Copy(&read, streams.sum_.data(), 4);
    ASSERT_EQ(streams.main_->Synchronize(), absl::OkStatus());
    expected = 2 * (expected + value);
    EXPECT_EQ(read, expected) << "run " << run;
    // Moments are not ordered: a stream relates its GPU's clock to the host's again and again, on a busy host
    // with errors of milliseconds.
    EXPECT_NE(streams.begin_ns_, last_begin) << "each run has its own moments";
    EXPECT_NE(streams.added_ns_, last_added) << "each run has its own moments";
    last_begin = streams.begin_ns_;
    last_added = streams.added_ns_;
  }
}

TEST_F(FakeCudaTest, ARecordingFailsIfAStreamIsNotJoined) {
  RecordedStreams streams;
  streams.Enqueue(*streams.main_, *streams.beside_);
  streams.joins_ = false;
  ASSERT_EQ(BeginRecording(*streams.main_), absl::OkStatus());
  streams.Enqueue(*streams.main_, *streams.beside_);
  EXPECT_THAT(EndRecording(*streams.main_).status().message(), Has("cudaStreamEndCapture"));
}

class Watch : public CudaWatch {
 public:
  absl::Status Look() override { return status; }
  absl::Status status;
};

TEST_F(FakeCudaTest, WatchesAreQueriedBeforeAReplayAndCallsFollowIt) {
  RecordedStreams streams;
  const auto watch = std::make_shared<Watch>();
  int replays = 0;
  ASSERT_EQ(BeginRecording(*streams.main_), absl::OkStatus());
  CudaStream::From(*streams.main_)->Watch(watch);
  CudaStream::From(*streams.main_)->recording()->behind.push_back([&](cudaStream_t) {
    ++replays;
    return absl::OkStatus();
  });
  streams.ops_->Add(streams.sum_.span(), streams.sum_.span(), *streams.main_);
  const auto work = EndRecording(*streams.main_).value();
  EXPECT_EQ(replays, 0);
  work->Replay();
  work->Replay();
  EXPECT_EQ(replays, 2);
  EXPECT_EQ(streams.main_->Synchronize(), absl::OkStatus());
  watch->status = absl::UnavailableError("peer 3 is gone");
  const int launches = TheFakeCuda().graph_launches;
  work->Replay();
  EXPECT_EQ(streams.main_->Synchronize(), watch->status);
  EXPECT_EQ(TheFakeCuda().graph_launches, launches) << "a recording whose watch has failed is not launched";
}

TEST_F(FakeCudaTest, AWatchEndsWaitsThatNoEventWouldEnd) {
  const auto device = MakeDevice("cuda").value();
  const auto stuck = device->NewStream(StreamKind::kCompute, "stuck");
  std::latch go_on(1);
  const auto peer = device->NewStream(StreamKind::kBackground, "peer");
  peer->Run([&] {
    go_on.wait();
    return absl::OkStatus();
  });
  const Event never = peer->Record();
  const auto watch = std::make_shared<Watch>();
  watch->status = absl::UnavailableError("peer 3 is gone");
  CudaStream::From(*stuck)->Watch(watch);
  EXPECT_FALSE(never.Happened());
  // A kernel that waits for a peer.
  CudaStream::From(*stuck)->Enqueue("collective", [&](cudaStream_t queue) {
    const auto wait = [](void* latch) { static_cast<std::latch*>(latch)->wait(); };
    return CudaStatus("cudaLaunchHostFunc", cudaLaunchHostFunc(queue, wait, &go_on));
  });
  EXPECT_EQ(stuck->Synchronize(), absl::UnavailableError("peer 3 is gone"));
  go_on.count_down();
  EXPECT_EQ(peer->Synchronize(), absl::OkStatus());
}

// Last: a failed GPU stays failed for its process.
TEST_F(FakeCudaTest, ZZAFailureOnTheGpuSurfacesWithTheCallsBeforeIt) {
  const auto device = MakeDevice("cuda").value();
  const auto ops = MakeCudaOps(*device).value();
  const auto stream = device->NewStream(StreamKind::kCompute, "test");
  const Buffer a = device->Allocate(40).value(), b = device->Allocate(40).value();
  ops->Add(a.span(), b.span(), *stream);
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
  TheFakeCuda().kernels_fail = true;
  ops->Apply(SgdStep{1, 1}, a.span(), b.span(), {}, *stream);
  const Event behind = stream->Record();
  EXPECT_THAT(behind.Wait(MonotonicNow() + absl::Seconds(20)).message(),
              Has("cuda:0", "illegal memory access", "add, sgd"));
  EXPECT_THAT(stream->Synchronize().message(), Has("illegal memory access", "CUDA_LAUNCH_BLOCKING=1"));
}

}  // namespace
}  // namespace psring
