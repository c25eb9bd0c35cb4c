// Limits of GPUs, and what is enqueued on them; on a fake CUDA runtime (fake_cuda.h).
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "common/device_factory/make_device.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/batch_memory.h"

namespace psring {
namespace {

absl::Status Begin(const TrainingOptions& options) {
  const std::vector<RankOutcome> outcomes = RunRanks(options, 1, SmallData());
  EXPECT_TRUE(outcomes[0].steps.empty() || outcomes[0].result.ok());
  return outcomes[0].result.status();
}

TEST(GpuLimits, TooLittleMemoryIsReportedBeforeAllocating) {
  TrainingOptions options = SmallOptions("single");
  options.device = "cuda";
  TheFakeCuda().memory = (size_t{32} << 20) + (64 << 10);  // cuBLASLt's workspace and little more
  const absl::Status refused = Begin(options);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), Has("cuda:0: training needs at least "));
  EXPECT_THAT(refused.message(), Has(" of 32.1 MiB are free"));
  EXPECT_EQ(TheFakeCuda().buffers, 0);
  TheFakeCuda().memory = size_t{1} << 30;
  EXPECT_EQ(Begin(options), absl::OkStatus());
}

// One graph for a step without host work; otherwise one for forward and one for each of the two units of
// backward.
TEST(GpuLimits, GraphsAreLaunchedFromTheSecondStep) {
  for (const auto& [strategy, optimizer, a_step] :
       {std::tuple("single", "momentum", 1), std::tuple("single", "adam", 1),
        std::tuple("ps-sync", "sgd", 3)}) {
    TrainingOptions options = SmallOptions(strategy);
    options.device = "cuda";
    options.optimizer = optimizer;
    options.cuda_graph = true;
    options.steps = 10;
    const int before = TheFakeCuda().graph_launches;
    EXPECT_EQ(Begin(options), absl::OkStatus());
    EXPECT_EQ(TheFakeCuda().graph_launches - before, 9 * a_step) << strategy << " " << optimizer;
    EXPECT_EQ(TheFakeCuda().graphs, 0) << "all are released";
  }
}

// The first step allocates memory.
TEST(GpuLimits, OnlyTheFirstStepAllocates) {
  for (const auto& [strategy, workers] :
       {std::pair("single", 1), std::pair("ring", 2), std::pair("star", 3), std::pair("ps-sync", 2)}) {
    for (const char* model : {"mlp-small", "cnn"}) {
      TrainingOptions options = SmallOptions(strategy);
      options.device = "cuda";
      options.model = model;
      options.batch = 2;
      options.steps = 4;
      const auto watched = [](Worker& worker) {
        if (worker.rank != 0) return;
        worker.on_step = [steps = 0, before = int64_t{0}](const StepRecord&) mutable {
          const int64_t now = TheFakeCuda().allocations;
          // Other ranks may still be in their first step when this one has finished its second.
          if (++steps > 3) {
            EXPECT_EQ(now, before);
          }
          before = now;
        };
      };
      for (const RankOutcome& outcome : RunRanks(options, workers, SmallData(), watched))
        EXPECT_EQ(outcome.result.status(), absl::OkStatus());
    }
  }
}

TEST(GpuLimits, GraphsNeedAGpu) {
  TrainingOptions options = SmallOptions("single");
  options.cuda_graph = true;
  EXPECT_EQ(Begin(options).message(), "--cuda_graph needs a GPU, but this device is cpu; omit it");
}

TEST(GpuLimits, RejectsAPrecisionThatTheGpuDoesNotSupport) {
  TrainingOptions options = SmallOptions("single");
  options.device = "cuda";
  options.precision = "tf32";
  TheFakeCuda().architecture = 75;
  EXPECT_EQ(Begin(options).message(),
            "--precision tf32 needs a GPU of compute capability 8.0 (Ampere) or newer, and cuda:0 is of 7.5; "
            "omit it");
  TheFakeCuda().architecture = 80;
}

TEST(GpuBatches, APrefetchedBatchIsUsedWhenAllOfItHasArrived) {
  const std::unique_ptr<Device> device = *MakeDevice("cuda");
  const std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute, "compute");
  constexpr int kPictures = 32, kExtent = 512;
  const Dataset data =
      MakeSyntheticData({.height = kExtent, .width = kExtent, .train = kPictures, .test = 1}, 1).train;
  BatchMemory memory = *BatchMemory::Create(data.spec(), kPictures, *device);
  std::vector<int64_t> all(kPictures);
  std::iota(all.begin(), all.end(), 0);
  TheFakeCuda().pace[0].paused = true;  // then all streams begin at the same time
  ASSERT_EQ(memory.Prefetch(data, all), absl::OkStatus());
  const absl::StatusOr<Batch> batch = memory.Load(data, all, *compute);
  ASSERT_EQ(batch.status(), absl::OkStatus());
  std::vector<float> expected(size_t{kPictures} * kExtent * kExtent), loaded(expected.size());
  compute->Copy(loaded.data(), batch->inputs[0], loaded.size() * sizeof(float));
  ASSERT_EQ(compute->Synchronize(), absl::OkStatus());
  std::vector<int32_t> labels(kPictures);
  void* const to = expected.data();
  data.Gather(all, {&to, 1}, labels.data());
  EXPECT_TRUE(loaded == expected);
}

}  // namespace
}  // namespace psring
