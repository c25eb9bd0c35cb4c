#include "trainer/memory/memory_need.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/common/ops/reference_ops.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/data/sources.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/evaluation.h"

namespace psring {
namespace {

// Of mlp-small: 266,610 parameters, and tensors that begin at multiples of 16 elements.
constexpr size_t kElements = 784 * 300 + 304 + 300 * 100 + 112 + 1008 + 16;

class MemoryNeeded : public testing::Test {
 protected:
  MemoryNeed Of(const TrainingOptions& options, const OptimizerConfig* optimizer) {
    return Of(options, PictureSpec(28, 28), {.optimizer = optimizer});
  }
  MemoryNeed Of(const TrainingOptions& options, const SampleSpec& samples, const StateOnRank& on_rank) {
    const auto model = *ModelOf(options)->make(samples, *ops_);
    return MemoryNeedOf(options, *model, samples, options.batch, on_rank, *device_).value();
  }
  static TrainingOptions SmallMlp(int batch) {
    TrainingOptions options;
    options.model = "mlp-small";
    options.batch = batch;
    return options;
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Ops> ops_ = MakeReferenceOps();
};

TEST_F(MemoryNeeded, IncludesWeightsGradientsStateAndABatch) {
  const OptimizerConfig momentum{.kind = OptimizerKind::kMomentum}, adam{.kind = OptimizerKind::kAdam};
  const MemoryNeed need = Of(SmallMlp(10), &momentum);
  EXPECT_EQ(need.parameters, 2 * 4 * kElements);
  EXPECT_EQ(need.gradients, 4 * kElements);
  EXPECT_DOUBLE_EQ(ByClass(need).total_mb(), static_cast<double>(need.total()) / (1 << 20));
  EXPECT_EQ(need.optimizer, 4 * kElements);
  // Each layer's outputs, at multiples of 64 bytes; gradients of the hidden layers' outputs (the last
  // output's is in its place); images, labels, the score.
  const size_t outputs = 12'032 + 4'032 + 448, gradients = 12'032 + 4'032;
  EXPECT_EQ(need.batch, outputs + gradients + 10 * (4 * 784 + 4) + sizeof(BatchScore));
  EXPECT_EQ(need.total(), need.parameters + need.optimizer + need.batch);
  EXPECT_EQ(Of(SmallMlp(10), &adam).optimizer, 2 * 4 * kElements);
  EXPECT_EQ(Of(SmallMlp(10), nullptr).optimizer, 0) << "a server has it";
  const MemoryNeed sharded = Of(SmallMlp(10), PictureSpec(28, 28), {.optimizer = &adam, .shards = 4});
  EXPECT_EQ(sharded.optimizer, 2 * 4 * kElements / 4);
  EXPECT_EQ(sharded.parameters, need.parameters);
}

TEST_F(MemoryNeeded, TablesAndTheirStateCountWhereTheyAre) {
  TrainingOptions options;
  options.model = "dlrm-small";
  const OptimizerConfig adam{.kind = OptimizerKind::kAdam};
  const auto of = [&](const StateOnRank& on_rank) { return Of(options, ClickSpec(/*rows=*/1000), on_rank); };
  constexpr size_t kTables = 8 * 1000 * 64 * sizeof(float);
  const MemoryNeed sharded = of({.optimizer = &adam, .shards = 2});
  const MemoryNeed all = of({.optimizer = &adam}), hybrid = of({.optimizer = &adam, .has_tables = false}),
                   server = of({.has_tables = false});
  EXPECT_EQ(all.parameters - hybrid.parameters, kTables);
  EXPECT_EQ(all.optimizer - hybrid.optimizer, 2 * kTables);
  EXPECT_EQ(hybrid.parameters, server.parameters);
  EXPECT_GT(hybrid.optimizer, 0);
  EXPECT_EQ(all.optimizer - sharded.optimizer, hybrid.optimizer / 2) << "every rank has all tables";
  EXPECT_EQ(server.optimizer, 0);
}

TEST_F(MemoryNeeded, GrowsWithBatchWidthAndAddedGradients) {
  TrainingOptions options = SmallMlp(20);
  EXPECT_GT(Of(options, nullptr).batch, 19 * Of(SmallMlp(1), nullptr).batch);
  options.reference_workers = 2;
  options.micro_batches = 2;
  EXPECT_EQ(Of(options, nullptr).parameters, 4 * 4 * kElements);
  EXPECT_EQ(Of(options, nullptr).gradients, 3 * 4 * kElements);
  options.width = 1000;
  EXPECT_GT(Of(options, nullptr).parameters, 4 * 4 * 4 * kElements);
}

TEST_F(MemoryNeeded, IncludesTheGradientsThatWeightsNeedLater) {
  const TrainingOptions options = TinyGpt("single");
  const SampleSpec& samples = SmallText().train.spec();
  const MemoryNeed joint = Of(options, samples, {}),
                   divided = Of(options, samples, {.divides_backward = true});
  EXPECT_GT(divided.batch, joint.batch);
  EXPECT_GT(joint.recompute_saves, 0);
  EXPECT_EQ(divided.recompute_saves, 0) << "these programs do not recompute";
}

TEST(CheckMemory, NamesWhatIsNeededAndAvailable) {
  const MemoryNeed need{.parameters = size_t{600} << 20,
                        .gradients = size_t{200} << 20,
                        .optimizer = size_t{300} << 20,
                        .batch = 1 << 20};
  MemoryShare share{.memory = {.free = need.total(), .total = size_t{2} << 30}, .needed = need.total()};
  EXPECT_TRUE(CheckMemory(need, share, 128, "cuda:1").ok());
  --share.memory.free;
  const absl::Status refused = CheckMemory(need, share, 128, "cuda:1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "cuda:1: training needs at least 901.0 MiB of memory (parameters 400.0 MiB, gradients 200.0 MiB, "
            "optimizer 300.0 MiB, activations of 128 samples 1.0 MiB), and 901.0 MiB of 2.00 GiB are free; "
            "use a smaller --batch or network, or --device cpu");
  EXPECT_TRUE(
      absl::EndsWith(CheckMemory(need, share, 128, "cpu").message(), "use a smaller --batch or network"));
  share.is_limit = true;
  EXPECT_THAT(std::string(CheckMemory(need, share, 128, "cpu", "; remedy").message()),
              Has("1.0 MiB), and --memory allows 901.0 MiB; ", "network; remedy"));
}

TEST(CheckMemory, CountsAllThatShareIt) {
  const MemoryNeed need{.parameters = size_t{40} << 20, .units = size_t{10} << 20};
  MemoryShare share{.memory = {.free = size_t{160} << 20, .total = size_t{200} << 20},
                    .ranks = 4,
                    .needed = 4 * need.total()};
  EXPECT_TRUE(CheckMemory(need, share, 1, "cpu").ok());
  share.memory.free -= 1;
  EXPECT_THAT(
      std::string(CheckMemory(need, share, 1, "cpu").message()),
      Has("samples 0.0 MiB; 10.0 MiB of it are buffers for complete units) for this one of the 4 "
          "workers that share it, which need 160.0 MiB together, and 160.0 MiB of 200.0 MiB are free"));
}

TEST(SharesOf, AreThoseOfTheLimitAndOfTheDevice) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const MemoryNeed need{.parameters = 1000};
  const auto shares = [&](const std::string& limit) {
    return SharesOf(need, limit, *device, [](size_t bytes) { return MemoryUse{3, 3 * bytes}; }).value();
  };
  EXPECT_TRUE(shares("none").empty());
  const std::vector<MemoryShare> own = shares(""), limited = shares("2K");
  ASSERT_EQ(limited.size(), own.size() + 1);
  EXPECT_TRUE(limited[0].is_limit);
  EXPECT_EQ(limited[0].memory.free, 2048);
  EXPECT_EQ(limited[0].needed, 1000) << "the limit is for each worker";
  for (const MemoryShare& share : own) {
    EXPECT_EQ(share.ranks, 3);
    EXPECT_EQ(share.needed, 3000);
  }
}

TEST(Snapshots, AreRejectedIfTheyNeedTooMuchMemory) {
  EXPECT_TRUE(CheckSnapshots(0, 1'000'000, 1'000'000'000).ok());
  EXPECT_TRUE(CheckSnapshots(10, 640, 1000).ok());
  EXPECT_EQ(
      CheckSnapshots(10, 650, 1000).message(),
      "--eval_every 10 asks for 65 evaluations in 650 steps, but at most 64 copies of the weights are kept; "
      "use --eval_every 11 or more");
  // 64 MiB each: 8 fit into 512 MiB.
  EXPECT_TRUE(CheckSnapshots(10, 80, 16 << 20).ok());
  EXPECT_FALSE(CheckSnapshots(10, 90, 16 << 20).ok());
  EXPECT_TRUE(CheckSnapshots(12, 90, 16 << 20).ok());
}

}  // namespace
}  // namespace psring
