#include "common/device/device.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/deadline.h"
#include "common/device_factory/make_device.h"
#include "common/measure/trace.h"
#include "tests/has.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

using testing::Values;

MonotonicTime Soon() { return MonotonicNow() + absl::Seconds(20); }

std::function<absl::Status()> Work(std::function<void()> work) {
  return [work = std::move(work)] {
    work();
    return absl::OkStatus();
  };
}

std::function<absl::Status()> Failure(const std::string& message) {
  return [message] { return absl::UnavailableError(message); };
}

TEST(CpuDeviceTest, BuffersAreAlignedZeroedAndOfTheRequestedSize) {
  const auto device = MakeCpuDevice();
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{4096}, (size_t{2} << 20) - 1, (size_t{5} << 20) + 3}) {
    // Twice: the second may get memory that the first has written to.
    for (int i = 0; i < 2; ++i) {
      const Buffer buffer = device->Allocate(bytes).value();
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0);
      auto* const first = static_cast<uint8_t*>(buffer.data());
      EXPECT_TRUE(std::all_of(first, first + bytes, [](uint8_t byte) { return byte == 0; }));
      std::fill_n(first, bytes, 0xff);
    }
  }
}

TEST(CpuDeviceTest, ImpossibleSizesAreAnErrorThatNamesThem) {
  for (const size_t bytes : {size_t{1} << 60, SIZE_MAX - 5})
    EXPECT_THAT(MakeCpuDevice()->Allocate(bytes).status(),
                Fails(absl::StatusCode::kResourceExhausted, std::to_string(bytes)));
}

TEST(DeviceOfRank, RanksTakeTheGpusOfTheirHostInTurn) {
  const struct {
    const char* spec;
    int rank, gpus;
    const char* device;
  } cases[] = {{"cuda", 0, 2, "cuda:0"}, {"cuda", 1, 2, "cuda:1"},  {"cuda", 2, 2, "cuda:0"},
               {"auto", 3, 4, "cuda:3"}, {"auto", 1, 0, "cpu"},     {"cuda", 1, 0, "cuda"},
               {"cpu", 1, 4, "cpu"},     {"cuda:2", 0, 4, "cuda:2"}};
  for (const auto& [spec, rank, gpus, device] : cases)
    EXPECT_EQ(DeviceOfRank(spec, rank, gpus), device)
        << spec << ", rank " << rank << " of " << gpus << " GPUs";
}

TEST(MakeDeviceTest, TheCpuIsAlwaysAvailable) {
  EXPECT_EQ(MakeDevice("cpu").value()->name(), "cpu");
  EXPECT_TRUE(MakeDevice("auto").ok());
}

TEST(MakeDeviceTest, ErrorsSayWhatToDo) {
  for (const std::string spec : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "CPU"})
    EXPECT_THAT(MakeDevice(spec).status(), Fails(absl::StatusCode::kInvalidArgument, "auto, cpu, cuda"))
        << spec;
  EXPECT_THAT(MakeDevice("cuda:4711").status().message(), Has("cuda:4711", "--device cpu"));
}

TEST(ComputeStreamTest, WorkRunsInsideTheCallThatEnqueuesIt) {
  const auto stream = MakeCpuDevice()->NewStream(StreamKind::kCompute, "compute");
  std::thread::id ran_on;
  stream->Run(Work([&] { ran_on = std::this_thread::get_id(); }));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_TRUE(stream->Record().Happened());
}

TEST(ComputeStreamTest, WaitForBlocksTheCaller) {
  const auto device = MakeCpuDevice();
  const auto compute = device->NewStream(StreamKind::kCompute, "compute");
  const auto lane = device->NewStream(StreamKind::kBackground, "lane");
  std::latch go_on(1);
  bool done = false;
  lane->Run(Work([&] {
    go_on.wait();
    done = true;
  }));
  const Event event = lane->Record();
  WaitingThread caller([&] {
    compute->WaitFor(event);
    EXPECT_TRUE(done);
  });
  EXPECT_FALSE(caller.returned());
  go_on.count_down();
}

TEST(BackgroundStreamTest, WorkRunsOnAThreadWithTheStreamsName) {
  const auto stream = MakeCpuDevice()->NewStream(StreamKind::kBackground, "a stream with a long name");
  std::string name;
  std::thread::id ran_on;
  stream->Run(Work([&] {
    char buffer[16];
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
    ran_on = std::this_thread::get_id();
  }));
  EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
  EXPECT_EQ(name, "a stream with a");
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(BackgroundStreamTest, DestructionRunsWhatIsQueued) {
  std::atomic<int> ran = 0;
  {
    const auto stream = MakeCpuDevice()->NewStream(StreamKind::kBackground, "lane");
    for (int i = 0; i < 100; ++i) stream->Run(Work([&] { ++ran; }));
  }
  EXPECT_EQ(ran, 100);
}

TEST(BackgroundStreamTest, WorkWaitsForAnEventOfAnotherStream) {
  const auto device = MakeCpuDevice();
  const auto first = device->NewStream(StreamKind::kBackground, "first");
  const auto second = device->NewStream(StreamKind::kBackground, "second");
  std::latch go_on(1);
  std::vector<int> order;  // the event prevents a race
  first->Run(Work([&] {
    go_on.wait();
    order.push_back(1);
  }));
  second->WaitFor(first->Record());
  second->Run(Work([&] { order.push_back(2); }));
  EXPECT_FALSE(second->Record().Happened());
  go_on.count_down();
  EXPECT_EQ(second->Synchronize(), absl::OkStatus());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

struct KindOfStream {
  const char* device;
  StreamKind kind;
  friend std::ostream& operator<<(std::ostream& out, const KindOfStream& k) { return out << k.device; }
};

class StreamTest : public testing::TestWithParam<KindOfStream> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device = MakeDevice(GetParam().device);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
    stream_ = device_->NewStream(GetParam().kind, "test");
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

INSTANTIATE_TEST_SUITE_P(AllKinds, StreamTest,
                         Values(KindOfStream{"cpu", StreamKind::kCompute},
                                KindOfStream{"cpu", StreamKind::kBackground},
                                KindOfStream{"cuda", StreamKind::kCompute},
                                KindOfStream{"cuda", StreamKind::kBackground}),
                         [](const auto& info) {
                           return std::string(info.param.device) +
                                  (info.param.kind == StreamKind::kCompute ? "Compute" : "Background");
                         });

TEST_P(StreamTest, MemoryOfTheDeviceStartsAsZerosAndKeepsWhatIsCopied) {
  for (const size_t bytes : {0, 1, 4099}) {
    const Buffer memory = device_->Allocate(bytes).value(), host = device_->AllocateOnHost(bytes).value();
    auto* const values = static_cast<uint8_t*>(host.data());
    const auto all_are = [&](uint8_t expected) {
      std::fill_n(values, bytes, 1);
      stream_->Copy(values, memory.data(), bytes);
      EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
      return std::all_of(values, values + bytes, [=](uint8_t value) { return value == expected; });
    };
    EXPECT_TRUE(all_are(0));
    std::fill_n(values, bytes, 9);
    stream_->Copy(memory.data(), values, bytes);
    EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
    EXPECT_TRUE(all_are(9));
    stream_->Zero(memory.data(), bytes);
    EXPECT_TRUE(all_are(0));
  }
}

TEST_P(StreamTest, StampsAreTheTimesAtWhichTheStreamReachesThem) {
  int64_t before = 0, after = 0;
  const int64_t begin = MonotonicNanos();
  stream_->Stamp(before);
  stream_->Run(Work([] { absl::SleepFor(absl::Milliseconds(20)); }));
  stream_->Stamp(after);
  EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
  EXPECT_GE(after - before, 19'000'000);
  // A GPU's clock is set by the host's, late by as long as this thread was interrupted meanwhile.
  constexpr int64_t kInterrupted = 200'000'000;
  EXPECT_GE(before, begin - kInterrupted);
  EXPECT_LE(after, MonotonicNanos() + kInterrupted);
}

TEST_P(StreamTest, HostWorkIsInOrderWithTheDevicesWork) {
  stream_->Copy(nullptr, nullptr, 0);
  const Buffer memory = device_->Allocate(4).value(), host = device_->AllocateOnHost(4).value();
  auto* const value = static_cast<int32_t*>(host.data());
  *value = 1;
  stream_->Copy(memory.data(), value, 4);
  stream_->Run(Work([&] { *value = 2; }));  // after the copy has read it
  int32_t seen = 0;
  const Buffer other = device_->AllocateOnHost(4).value();
  stream_->Copy(other.data(), memory.data(), 4);
  stream_->Run(Work([&] { seen = *static_cast<int32_t*>(other.data()); }));
  EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(*value, 2);
}

TEST_P(StreamTest, WorkOfAnotherStreamIsWaitedForInStreamOrder) {
  const auto first = device_->NewStream(StreamKind::kBackground, "first");
  const Buffer memory = device_->Allocate(4).value(), host = device_->AllocateOnHost(4).value();
  auto* const value = static_cast<int32_t*>(host.data());
  for (int32_t i = 1; i < 20; ++i) {
    first->Run(Work([value, i] { *value = i; }));
    first->Copy(memory.data(), value, 4);
    stream_->WaitFor(first->Record());
    int32_t seen = 0;
    stream_->Copy(&seen, memory.data(), 4);
    EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
    EXPECT_EQ(seen, i);
  }
}

TEST_P(StreamTest, TheFirstErrorSkipsTheRestAndStays) {
  bool ran = false;
  int from = 1, to = 0;
  stream_->Run(Failure("first"));
  stream_->Run(Failure("second"));
  stream_->Run(Work([&] { ran = true; }));
  stream_->Copy(&to, &from, sizeof(to));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(stream_->Synchronize(), absl::UnavailableError("first"));
  EXPECT_FALSE(ran);
  EXPECT_EQ(to, 0);
}

TEST_P(StreamTest, EventsAfterAnErrorHappenAndContainIt) {
  const Event before = stream_->Record();
  stream_->Run(Failure("lost"));
  const Event after = stream_->Record();
  EXPECT_EQ(before.Wait(Soon()), absl::OkStatus());
  EXPECT_EQ(after.Wait(Soon()), absl::UnavailableError("lost"));
  EXPECT_TRUE(after.Happened());
}

TEST_P(StreamTest, AnErrorInAnEventReachesTheStreamThatWaitsForIt) {
  const auto failing = device_->NewStream(StreamKind::kBackground, "failing");
  failing->Run(Failure("peer 2 is gone"));
  stream_->WaitFor(failing->Record());
  bool ran = false;
  stream_->Run(Work([&] { ran = true; }));
  EXPECT_EQ(stream_->Synchronize(), absl::UnavailableError("peer 2 is gone"));
  EXPECT_FALSE(ran);
}

TEST(EventTest, AnEmptyEventHasHappened) {
  EXPECT_TRUE(Event().Happened());
  EXPECT_EQ(Event().Wait(MonotonicTime::InfinitePast()), absl::OkStatus());
}

TEST(EventTest, WaitingEndsAtItsDeadline) {
  const auto stream = MakeCpuDevice()->NewStream(StreamKind::kBackground, "lane");
  std::latch go_on(1);
  stream->Run(Work([&] { go_on.wait(); }));
  const Event event = stream->Record();
  EXPECT_EQ(event.Wait(MonotonicNow() + absl::Milliseconds(10)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(event.Happened());
  go_on.count_down();
  EXPECT_EQ(event.Wait(Soon()), absl::OkStatus());
}

TEST(EventTest, AnEventOutlivesItsStream) {
  Event event;
  {
    const auto stream = MakeCpuDevice()->NewStream(StreamKind::kBackground, "lane");
    stream->Run(Failure("late"));
    event = stream->Record();
  }
  EXPECT_EQ(event.Wait(Soon()), absl::UnavailableError("late"));
}

}  // namespace
}  // namespace psring
