// --recompute: the same bits with less memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/common/ops/reference_ops.h"
#include "tests/trainer/cluster.h"
#include "trainer/data/sources.h"
#include "trainer/memory/memory_need.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"
#include "trainer/models/replayed_model.h"

namespace psring {
namespace {

const DataSplits& DataOfBlocks(const std::string& model) {
  return model.starts_with("gpt") ? SmallText() : SmallPictures();
}

// Three blocks of gpt, or the eight of resnet18; evaluates, which needs the running statistics.
TrainingOptions TinyBlocks(const std::string& model, const std::string& strategy = "single") {
  TrainingOptions options =
      model.starts_with("gpt") ? TinyGpt(strategy) : TinyResNet(strategy, model.c_str());
  if (model.starts_with("gpt")) options.layers = 3;
  options.steps = 4;
  options.optimizer = "sgd";
  options.lr = .01;
  options.bucket_mb = .05;
  options.evaluate = true;
  return options;
}

// Forward and backward of a full batch, then of a short one.
struct TwoPasses {
  std::vector<double> losses;
  std::vector<float> gradients, buffers;
  size_t bytes = 0;  // of the activations
};

TwoPasses PassesOf(const std::string& name, Keep keep) {
  TwoPasses passes;
  const DataSplits& data = DataOfBlocks(name);
  const auto device = MakeCpuDevice();
  const auto stream = device->NewStream(StreamKind::kCompute, "compute");
  const auto ops = MakeOneDnnOps(/*threads=*/1);
  const auto model = *ModelOf(TinyBlocks(name))->make(data.train.spec(), *ops);
  Activations activations = *model->NewActivations(6, keep, *device);
  BatchMemory memory = *BatchMemory::Create(data.train.spec(), 6, *device);
  const std::vector<float> weights = model->InitialWeights(1);
  passes.bytes = activations.memory.bytes();
  passes.buffers = model->parameters().initial_buffers();
  const ModelState state{.weights = {weights.data(), weights.size()},
                         .buffers = {passes.buffers.data(), passes.buffers.size()}};
  const std::vector<std::vector<int64_t>> batches = {{0, 1, 2, 3, 4, 5}, {7, 9, 11}};
  for (const std::vector<int64_t>& indices : batches) {
    std::vector<float> gradient(weights.size());
    const Batch batch = *memory.Load(data.train, indices, *stream);
    memory.ClearScore(*stream);
    EXPECT_TRUE(model->Forward(state, batch, activations, memory.score(), *stream).ok());
    // Units of three layers, which cut blocks.
    for (size_t end = model->layers(); end > 0;) {
      const LayerRange unit{end - std::min<size_t>(3, end), end};
      const Span to{gradient.data(), gradient.size()};
      EXPECT_TRUE(model->BackwardUnit(unit, state, batch, activations, to, *stream).ok());
      end = unit.first;
    }
    memory.DownloadScore(*stream);
    EXPECT_TRUE(stream->Synchronize().ok());
    passes.losses.push_back(memory.downloaded_score().loss_sum);
    passes.gradients.insert(passes.gradients.end(), gradient.begin(), gradient.end());
  }
  return passes;
}

class Recomputed : public testing::TestWithParam<const char*> {};

TEST_P(Recomputed, PassesHaveTheSameBits) {
  const TwoPasses expected = PassesOf(GetParam(), Keep::kAll),
                  passes = PassesOf(GetParam(), Keep::kUnitInputs);
  EXPECT_EQ(passes.losses, expected.losses);
  EXPECT_EQ(passes.gradients, expected.gradients);
  EXPECT_EQ(passes.buffers, expected.buffers) << "running statistics are updated once";
  EXPECT_LT(passes.bytes, expected.bytes);
}

INSTANTIATE_TEST_SUITE_P(Models, Recomputed, testing::Values("gpt-nano", "resnet18", "resnet50"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.starts_with("gpt") ? "gpt_nano" : name;
                         });

struct RecomputeVariant {
  const char* name;
  const char* model;
  const char* strategy;
  int workers;
  void (*change)(TrainingOptions&);
  friend void PrintTo(const RecomputeVariant& variant, std::ostream* out) { *out << variant.name; }
};

class RecomputedTraining : public testing::TestWithParam<RecomputeVariant> {};

std::vector<RankOutcome> TrainBlocks(const TrainingOptions& options, int workers) {
  return TrainRanks(options, workers, DataOfBlocks(options.model));
}

TEST_P(RecomputedTraining, EndsWithTheSameBits) {
  const RecomputeVariant& variant = GetParam();
  TrainingOptions options = TinyBlocks(variant.model, variant.strategy);
  variant.change(options);
  const auto expected = TrainBlocks(options, variant.workers);
  options.recompute = true;
  const auto recomputed = TrainBlocks(options, variant.workers);
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_EQ(recomputed[rank].weights, expected[rank].weights) << "rank " << rank;
    EXPECT_EQ(recomputed[rank].result->ddp.ready_order, expected[rank].result->ddp.ready_order);
    EXPECT_EQ(recomputed[rank].result->bucket_elements, expected[rank].result->bucket_elements);
    ASSERT_EQ(recomputed[rank].steps.size(), expected[rank].steps.size());
    for (size_t step = 0; step < expected[rank].steps.size(); ++step)
      EXPECT_EQ(recomputed[rank].steps[step].payload_tx_bytes, expected[rank].steps[step].payload_tx_bytes);
  }
  EXPECT_EQ(recomputed[0].result->curve.back().test_loss, expected[0].result->curve.back().test_loss);
}

void Nothing(TrainingOptions&) {}
void AdamW(TrainingOptions& o) { o.optimizer = "adamw"; }
void SomeDropout(TrainingOptions& o) { o.dropout = .2; }
void SharedStatisticsOfAll(TrainingOptions& o) { o.sync_batch_norm = true; }
void Deterministic(TrainingOptions& o) { o.deterministic = true; }
void DeterministicAndAccumulated(TrainingOptions& o) { o.deterministic = true, o.micro_batches = 2; }
void TwoReplicas(TrainingOptions& o) { o.replicas = 2; }
void AnEpochOfAllSamples(TrainingOptions& o) { o.steps = 0, o.epochs = 1, o.drop_last = "false"; }

INSTANTIATE_TEST_SUITE_P(Variants, RecomputedTraining,
                         testing::ValuesIn(std::vector<RecomputeVariant>{
                             {"gpt_of_one_process", "gpt-nano", "single", 1, AdamW},
                             {"gpt_with_dropout", "gpt-nano", "single", 1, SomeDropout},
                             {"resnet_of_one_process", "resnet18", "single", 1, Nothing},
                             {"gpt_of_a_ring", "gpt-nano", "ring", 2, Nothing},
                             {"resnet_of_a_ring", "resnet18", "ring", 2, Nothing},
                             {"resnet_with_shared_statistics", "resnet18", "ring", 2, SharedStatisticsOfAll},
                             {"gpt_of_a_server", "gpt-nano", "ps-sync", 2, Deterministic},
                             {"resnet_of_a_server_and_accumulated", "resnet18", "ps-sync", 2,
                              DeterministicAndAccumulated},
                             {"resnet_of_replicas", "resnet18", "data-parallel", 1, TwoReplicas},
                             {"gpt_with_short_batches", "gpt-nano", "ring", 2, AnEpochOfAllSamples}}),
                         [](const auto& info) { return std::string(info.param.name); });

class RecomputeSaves : public testing::Test {
 protected:
  MemoryNeed Of(TrainingOptions options, const SampleSpec& samples, bool recompute) {
    options.recompute = recompute;
    const auto model = *ModelOf(options)->make(samples, *ops_);
    return *MemoryNeedOf(options, *model, samples, options.batch, /*on_rank=*/{}, *device_);
  }
  // Checks that both needs differ by `saved` bytes.
  void Expect(const TrainingOptions& options, const SampleSpec& samples, size_t saved) {
    const MemoryNeed all = Of(options, samples, false), recomputed = Of(options, samples, true);
    EXPECT_EQ(all.recompute_saves, saved);
    EXPECT_EQ(recomputed.recompute_saves, saved);
    EXPECT_EQ(all.batch - recomputed.batch, saved);
    EXPECT_EQ(all.parameters, recomputed.parameters);
    EXPECT_FALSE(all.recomputes);
    EXPECT_TRUE(recomputed.recomputes);
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Ops> ops_ = MakeReferenceOps();
};

// Of all transformer blocks but one, what is inside. Per token: normalized values, queries, keys and values,
// attention, its projection, normalized values, the MLP's inner values and inputs of GELU, in units of the
// width: 1 + 3 + 1 + 1 + 1 + 4 + 4. Also the statistics of two normalizations, two numbers each, and a number
// per head.
TEST_F(RecomputeSaves, TheInnerValuesOfAllTransformerBlocksButOne) {
  TrainingOptions options{.model = "gpt-nano"};
  options.batch = 4;
  const size_t tokens = 4 * 64, per_token = sizeof(float) * (15 * 128 + 2 * 2 + 4);
  Expect(options, TextSpec(64, 73), 3 * tokens * per_token);
  options.layers = 12;
  Expect(options, TextSpec(64, 73), 11 * tokens * per_token);
}

// All values inside the blocks but those of one block of the first stage, of three maps. Stage 0 has 2 blocks
// of 3 inner maps; the others have 5 in their first block, which also convolves its input, and 3.
TEST_F(RecomputeSaves, TheInnerMapsOfAllResidualBlocksButOne) {
  TrainingOptions options{.model = "resnet18"};
  options.batch = 4;
  const size_t map0 = 28 * 28 * 64, map1 = 14 * 14 * 128, map2 = 7 * 7 * 256, map3 = 4 * 4 * 512;
  Expect(options, PictureSpec(28, 28), 4 * sizeof(float) * (3 * map0 + 8 * (map1 + map2 + map3)));
}

TEST(RecomputeNote, SaysHowMuchMemoryActivationsNeed) {
  const MemoryNeed need{.batch = size_t{30} << 20, .recomputes = true, .recompute_saves = size_t{70} << 20};
  EXPECT_EQ(RecomputeNote(need, 12),
            "--recompute: activations of 12 samples need 30.0 MiB instead of 100.0 MiB");
  std::vector<std::string> notes;
  TrainingOptions options = TinyBlocks("gpt-nano");
  options.recompute = true;
  RunRanks(options, 1, DataOfBlocks("gpt-nano"), [&notes](Worker& worker) {
    worker.on_note = [&notes](const std::string& note) { notes.push_back(note); };
  });
  ASSERT_EQ(notes.size(), 1);
  EXPECT_TRUE(notes[0].starts_with("--recompute: activations of 8 samples need ")) << notes[0];
}

TEST(RecomputeNote, IsAlsoTheAdviceIfMemoryDoesNotSuffice) {
  MemoryNeed need{.batch = size_t{90} << 20, .recompute_saves = size_t{70} << 20};
  const auto error = [&need] {
    return std::string(
        CheckMemory(need, {.memory = {.free = 1, .total = 2}, .needed = 90}, 12, "cpu").message());
  };
  EXPECT_TRUE(error().ends_with("use a smaller --batch or network, --recompute, which saves 70.0 MiB"));
  need.recomputes = true;
  EXPECT_TRUE(error().ends_with("use a smaller --batch or network"));
}

TEST(Recompute, IsRejectedForModelsWithoutBlocks) {
  const auto error = [](const TrainingOptions& options) {
    return std::string(ModelOf(options).status().message());
  };
  for (const ModelRow& row : Models()) {
    TrainingOptions options;
    options.model = row.name;
    options.recompute = true;
    EXPECT_EQ(error(options),
              row.has_units
                  ? ""
                  : std::string("--recompute is for models that consist of blocks (resnet18, resnet50, "
                                "gpt-nano, gpt-mini, gpt2); omit it for ") +
                        row.name);
  }
  EXPECT_EQ(error({.model = "gpt-nano", .layers = 1, .recompute = true}),
            "--recompute with --layers 1 saves nothing: the last block is never computed again; omit one of "
            "them");
}

}  // namespace
}  // namespace psring
