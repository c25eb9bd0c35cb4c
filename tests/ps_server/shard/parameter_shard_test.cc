#include "ps_server/shard/parameter_shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "common/device_factory/make_device.h"
#include "common/device_factory/make_ops.h"
#include "common/kernels/reduce.h"

namespace psring {
namespace {

constexpr int64_t kSamples = 8;

// On the CPU, and on a GPU if there is one, or on the fake CUDA runtime (tests/common/cuda/fake_cuda.h).
class ShardTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device = MakeDevice(GetParam());
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
    lane_ = NewLane();
  }
  ServerJob Job(int workers, const std::string& consistency, bool deterministic, size_t count) {
    ServerJob job{.workers = workers, .consistency = consistency, .deterministic = deterministic};
    job.parameters = static_cast<int64_t>(count);
    job.buckets = {{.index = 0, .first = 0, .count = count}};
    job.optimizer.kind = OptimizerKind::kSgd;
    job.schedule.base = 0.5;
    return job;
  }
  std::unique_ptr<ParameterShard> Shard(const ServerJob& job, float initial) {
    auto shard = ParameterShard::Create(job, *device_);
    PSRING_CHECK(shard.ok());
    std::vector<float> values((*shard)->value_count());
    std::fill_n(values.begin(), job.parameters, initial);
    PSRING_CHECK((*shard)->LoadBucket(0, values.data()).ok());
    return std::move(*shard);
  }
  // Returns the index of the first element that is not finite.
  std::optional<size_t> Push(ParameterShard& shard, int worker, const std::vector<float>& gradient,
                             bool whole = false) {
    const Bytes all = std::as_bytes(std::span(gradient));
    const WholeGradient in_place{all};
    PSRING_CHECK(*shard.BeginPush(worker, 0, 0, whole ? &in_place : nullptr));
    if (whole) return shard.AddWhole(worker, 0, in_place, lane_, shard.resets(0))->not_finite;
    size_t offset = 0;
    do {
      const Bytes chunk = all.subspan(offset, ChunkLength(all.size(), offset));
      const auto added = shard.AddChunk(worker, 0, offset, {&chunk, 1}, shard.resets(0));
      if (added->not_finite.has_value()) return *added->not_finite + offset / sizeof(float);
      offset += chunk.size();
    } while (offset < all.size());
    return std::nullopt;
  }
  static std::vector<float> Floats(const Snapshot& snapshot) {
    return {snapshot.weights.floats(), snapshot.weights.floats() + snapshot.weights.count};
  }
  // Apply, then Read.
  Snapshot Update(ParameterShard& shard, const std::vector<int>& workers, int64_t samples, int64_t version) {
    PSRING_CHECK(shard.Apply(0, workers, samples, version, {}, lane_).ok());
    const absl::StatusOr<Snapshot> weights = shard.Read(0);
    PSRING_CHECK(weights.ok());
    return *weights;
  }
  Lane NewLane() { return {*MakeUpdateOps(*device_), device_->NewStream(StreamKind::kCompute, "test")}; }

  std::unique_ptr<Device> device_;
  Lane lane_;
};

INSTANTIATE_TEST_SUITE_P(Devices, ShardTest, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(ShardTest, SimultaneousPushesAreAdded) {
  const size_t count = 3 * kChunkBytes / sizeof(float) + 7;
  const int workers = 4;
  for (const bool deterministic : {false, true}) {
    const auto shard = Shard(Job(workers, "sync", deterministic, count), 1);
    for (int step = 1; step <= 3; ++step) {
      std::vector<std::thread> threads;
      for (int worker = 0; worker < workers; ++worker) {
        threads.emplace_back([&, worker] { Push(*shard, worker, std::vector<float>(count, worker + step)); });
      }
      for (std::thread& thread : threads) thread.join();
      std::vector<int> all(workers);
      std::iota(all.begin(), all.end(), 0);
      const absl::Status applied = shard->Apply(0, all, kSamples, step, {}, lane_);
      ASSERT_TRUE(applied.ok()) << applied;
    }
    // Sums of small whole numbers are exact: 4 step + 6 in each step.
    const float expected = 1 - 0.5f * ((4 + 6) + (8 + 6) + (12 + 6)) / kSamples;
    EXPECT_EQ(Floats(*shard->Copy(0)), std::vector<float>(count, expected));
  }
}

TEST_P(ShardTest, DeterministicAddsInWorkerOrder) {
  // (1e8 + 1) - 1e8 loses the 1 in float32; other orders keep it.
  const auto result = [&](std::vector<int> arrival) {
    const auto shard = Shard(Job(3, "sync", true, 1), 0);
    const float gradients[] = {1e8f, 1, -1e8f};
    for (const int worker : arrival) Push(*shard, worker, {gradients[worker]});
    return Floats(Update(*shard, {0, 1, 2}, 1, 1))[0];
  };
  for (const auto& arrival : std::vector<std::vector<int>>{{0, 1, 2}, {0, 2, 1}, {2, 0, 1}, {1, 2, 0}}) {
    EXPECT_EQ(result(arrival), 0.0f);
  }
}

TEST_P(ShardTest, AnAsynchronousSnapshotDoesNotChange) {
  const auto shard = Shard(Job(2, "async", false, 5), 1);
  const auto apply = [&](int worker, int64_t version) {
    Push(*shard, worker, std::vector<float>(5, 8));
    return Update(*shard, {worker}, kSamples, version);
  };
  const Snapshot first = apply(0, 1);
  const Snapshot second = apply(1, 2);
  EXPECT_EQ(Floats(first), std::vector<float>(5, 0.5f));
  EXPECT_EQ(Floats(second), std::vector<float>(5, 0));
}

// One of two workers is spare: an update may happen while the other still receives.
TEST_P(ShardTest, WithSpareWorkersASnapshotDoesNotChange) {
  for (const bool deterministic : {false, true}) {
    const auto shard = Shard(Job(2, "backup:1", deterministic, 5), 1);
    std::vector<Snapshot> seen;
    for (const int worker : {0, 1}) {
      Push(*shard, worker, std::vector<float>(5, 8));
      seen.push_back(Update(*shard, {worker}, kSamples, worker + 1));
    }
    EXPECT_EQ(Floats(seen[0]), std::vector<float>(5, 0.5f));
    EXPECT_EQ(Floats(seen[1]), std::vector<float>(5, 0));
  }
}

TEST_P(ShardTest, AGradientUsedInPlaceGivesTheSameWeights) {
  for (const std::string consistency : {"sync", "async"}) {
    for (const size_t count : {size_t{5}, kChunkBytes / sizeof(float) + 3}) {
      const auto shard = Shard(Job(1, consistency, false, count), 1);
      const std::vector<float> gradient(count, 8);
      for (int version = 1; version <= 3; ++version) {
        EXPECT_EQ(Push(*shard, 0, gradient, /*whole=*/true), std::nullopt);
        ASSERT_TRUE(shard->Apply(0, std::vector{0}, kSamples, version, {}, lane_).ok());
      }
      std::vector<float> weights(count);
      ASSERT_TRUE(shard->CopyWeightsTo(0, reinterpret_cast<std::byte*>(weights.data()), false, lane_).ok());
      EXPECT_EQ(weights, std::vector<float>(count, 1 - 3 * 0.5f));
      EXPECT_EQ(gradient, std::vector<float>(count, 8)) << "the worker's gradient must not change";
    }
  }
}

TEST_P(ShardTest, NonFiniteElementsAreFoundAnywhereAndRemovedByAReset) {
  const size_t count = kChunkBytes / sizeof(float) + 5000;
  for (const std::string consistency : {"sync", "async"}) {
    for (const bool deterministic : {false, true}) {
      for (const bool whole : {false, true}) {
        for (const size_t at : {size_t{0}, count / 2, count - 1}) {
          const auto shard = Shard(Job(2, consistency, deterministic, count), 1);
          std::vector<float> gradient(count, 8);
          gradient[at] = std::numeric_limits<float>::quiet_NaN();
          EXPECT_EQ(Push(*shard, 0, gradient, whole), at);
          if (shard->adds_as_it_arrives()) shard->Reset(0);
          shard->DropPush(0, 0);
          EXPECT_EQ(Push(*shard, 1, std::vector<float>(count, 8)), std::nullopt);
          EXPECT_EQ(Floats(Update(*shard, {1}, kSamples, 1)), std::vector<float>(count, 0.5f));
        }
      }
    }
  }
}

TEST_P(ShardTest, TheLearningRateFollowsTheSamplesOfEarlierUpdates) {
  ServerJob job = Job(1, "sync", false, 1);
  job.schedule = {.decay = LrDecay::kLinear, .base = 1, .total_samples = 4 * kSamples};
  const auto shard = Shard(job, 0);
  float expected = 0;
  for (int step = 0; step < 4; ++step) {
    Push(*shard, 0, {kSamples});
    const Snapshot weights = Update(*shard, {0}, kSamples, step + 1);
    expected -= 1 - step / 4.0f;
    EXPECT_EQ(Floats(weights)[0], expected);
  }
}

TEST_P(ShardTest, APushWithoutSamplesChangesNothing) {
  const auto shard = Shard(Job(1, "sync", false, 1), 3);
  Push(*shard, 0, {0});
  EXPECT_EQ(Floats(Update(*shard, {0}, 0, 1))[0], 3);
}

// Pieces of odd lengths at odd offsets, in all types, as from a socket.
TEST_P(ShardTest, PiecesAreAddedByValue) {
  const size_t count = kChunkBytes / sizeof(float) + 1001;
  for (const DType wire : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::string consistency : {"sync", "async"}) {
      ServerJob job = Job(1, consistency, false, count);
      job.wire = wire;
      const auto shard = Shard(job, 1);
      std::vector<float> gradient(count);
      for (size_t i = 0; i < count; ++i) gradient[i] = static_cast<float>(i % 97) - 40;
      std::vector<std::byte> bytes(count * SizeOf(wire));
      cpu::Convert(DType::kFloat32, gradient.data(), wire, bytes.data(), count);
      ASSERT_TRUE(*shard->BeginPush(0, 0, 0));
      for (size_t offset = 0; offset < bytes.size(); offset += kChunkBytes) {
        const Bytes chunk = Bytes(bytes).subspan(offset, ChunkLength(bytes.size(), offset));
        const size_t cut = std::min<size_t>(chunk.size(), 12345);
        const Bytes pieces[] = {chunk.first(cut / 3), chunk.subspan(cut / 3, cut - cut / 3),
                                chunk.subspan(cut)};
        const auto added = shard->AddChunk(0, 0, offset, pieces);
        ASSERT_TRUE(added.ok() && added->added && !added->not_finite.has_value());
      }
      std::vector<float> expected(count);
      for (size_t i = 0; i < count; ++i) expected[i] = 1 - 0.5f * (gradient[i] / kSamples);
      EXPECT_EQ(Floats(Update(*shard, {0}, kSamples, 1)), expected);
    }
  }
}

TEST_P(ShardTest, TheNormIsThatOfTheAppliedSum) {
  const size_t count = 70'001;
  for (const bool deterministic : {false, true}) {
    const auto shard = Shard(Job(2, "sync", deterministic, count), 0);
    for (const int worker : {0, 1}) Push(*shard, worker, std::vector<float>(count, worker + 1));
    const int all[] = {0, 1};
    const absl::StatusOr<double> squares = shard->Reduce(0, all, lane_);
    ASSERT_TRUE(squares.ok());
    EXPECT_DOUBLE_EQ(*squares, 9.0 * count);
    ASSERT_TRUE(shard->Apply(0, all, 1, 1, {.gradient = .5}, lane_).ok());
    EXPECT_EQ(Floats(*shard->Read(0)), std::vector<float>(count, -0.75f));
  }
}

TEST_P(ShardTest, SavedWeightsAndOptimizerStateAreLoaded) {
  const size_t count = kChunkBytes / sizeof(float) + 33;
  ServerJob job = Job(1, "sync", false, count);
  job.optimizer.kind = OptimizerKind::kAdam;
  const auto shard = Shard(job, 1), other = Shard(job, 0);
  Push(*shard, 0, std::vector<float>(count, 8));
  Update(*shard, {0}, kSamples, 1);
  std::vector<float> values(shard->value_count());
  ASSERT_EQ(values.size(), 3 * count);
  ASSERT_TRUE(shard->SaveBucket(0, values.data()).ok());
  ASSERT_TRUE(other->LoadBucket(0, values.data()).ok());
  other->set_samples_applied(0, shard->samples_applied(0));
  std::vector<std::vector<float>> ends;
  for (ParameterShard* one : {shard.get(), other.get()}) {
    Push(*one, 0, std::vector<float>(count, -3));
    ends.push_back(Floats(Update(*one, {0}, kSamples, 2)));
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST_P(ShardTest, TooLittleMemoryIsReportedWithTheNeededAmount) {
  ServerJob job = Job(1, "sync", false, size_t{1} << 40);
  job.optimizer.kind = OptimizerKind::kMomentum;
  const absl::Status status = ParameterShard::Create(job, *device_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string said(status.message());
  for (const char* part : {GetParam() == "cpu" ? "needs 16777216.0 MiB" : "needs 12582912.0 MiB",
                           "for 1099511627776 parameters", "MiB are available"}) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
}

TEST_P(ShardTest, TheCountOfSamplesDoesNotOverflow) {
  auto shard = Shard(Job(1, "sync", false, 3), 3);
  shard->set_samples_applied(0, INT64_MAX - 1);
  Push(*shard, 0, {0, 0, 0});
  Update(*shard, {0}, kSamples, 1);
  EXPECT_EQ(shard->samples_applied(0), INT64_MAX);
}

TEST_P(ShardTest, LentWeightsOutliveTheShard) {
  auto shard = Shard(Job(1, "sync", false, 3), 3);
  Push(*shard, 0, {0, 0, 0});
  const Snapshot weights = Update(*shard, {0}, 1, 1);
  shard.reset();
  EXPECT_EQ(Floats(weights), std::vector<float>(3, 3));
}

}  // namespace
}  // namespace psring
