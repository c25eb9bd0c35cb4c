#include "trainer/models/replayed_model.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/measure/trace.h"
#include "tests/common/ops/reference_ops.h"

namespace psring {
namespace {

Workload Recorded() {
  Workload workload;
  workload.name = "recorded";
  workload.batch = 4;
  workload.forward_ms = 20;
  workload.backward_ms = 60;
  workload.tensors = {{"last", 40, 10}, {"middle", 80, 30}, {"first", 400, 40}};
  return workload;
}

double MsSince(int64_t begin_ns) { return 1e-6 * static_cast<double>(MonotonicNanos() - begin_ns); }

TEST(Replay, GradientsAreReadyAtTheRecordedTimes) {
  const auto model = MakeReplayedModel(Recorded());
  ASSERT_EQ(model->parameters().count(), 130);
  const auto device = MakeCpuDevice();
  const auto stream = device->NewStream(StreamKind::kCompute, "compute");
  std::vector<float> weights = model->InitialWeights(1), gradient(130);
  ASSERT_EQ(weights.size(), 130);
  const Span span{gradient.data(), gradient.size(), DType::kFloat32};
  const ConstSpan of_weights{weights.data(), weights.size(), DType::kFloat32};
  const Batch batch{.size = 4};
  BatchScore score;

  const int64_t begin = MonotonicNanos();
  Activations activations;
  ASSERT_TRUE(model->Forward({of_weights}, batch, activations, &score, *stream).ok());
  EXPECT_GE(MsSince(begin), 20);
  EXPECT_EQ(score.loss_sum, 0);

  const int64_t backward = MonotonicNanos();
  std::vector<size_t> firsts;
  std::vector<double> ready_ms;
  const std::vector<ReadyRange> complete = model->CompleteAfterLayers();
  for (size_t l = model->layers(); l-- > 0;) {
    ASSERT_TRUE(model->BackwardUnit({l, l + 1}, {of_weights}, batch, activations, span, *stream).ok());
    if (complete[l].count == 0) continue;
    firsts.push_back(complete[l].first);
    ready_ms.push_back(MsSince(backward));
  }
  EXPECT_GE(MsSince(backward), 60);
  EXPECT_EQ(firsts, (std::vector<size_t>{120, 100, 0}));
  const std::vector<double> recorded = {10, 30, 40};
  for (size_t i = 0; i < recorded.size(); ++i) EXPECT_GE(ready_ms[i], recorded[i]);
  // Late by the wake-up time of a busy machine, but delays do not add up.
  EXPECT_LT(MsSince(backward), 60 + 60);
  for (size_t first : firsts) EXPECT_EQ(gradient[first], 4);
  EXPECT_EQ(gradient[1], 0);
}

TEST(Replay, AStageTakesTheTimeOfItsLayers) {
  Workload workload = Recorded();
  workload.activation_bytes = 400;
  workload.forward_ms = workload.backward_ms = 30'000;
  EXPECT_EQ(MakeReplayedModel(workload)->CutPoints(), (std::vector<size_t>{2, 3}));
  const auto stage = std::move(*MakeReplayedModel(workload)).TakeStages({{2, 3}}).value();
  ASSERT_EQ(stage->layers(), 1);
  ASSERT_EQ(stage->parameters().tensors().size(), 1);
  EXPECT_EQ(stage->parameters().tensors()[0].name, "middle");
  EXPECT_EQ(stage->InitialWeights(1).size(), 20);
  const auto device = MakeCpuDevice();
  const auto stream = device->NewStream(StreamKind::kCompute, "compute");
  Activations activations = stage->NewActivations(4, Keep::kAll, *device).value();
  const StageEdges edges = stage->EdgesOf(0, activations, 3);
  std::set<const void*> memory;
  for (const Span& edge : {edges.input, edges.input_gradient, edges.output, edges.output_gradient}) {
    EXPECT_EQ(edge.count, 3 * 100);
    memory.insert(edge.data);
  }
  EXPECT_EQ(memory.size(), 4);
  EXPECT_EQ(stage->EdgesOf(0, activations, 0).input.data, nullptr);

  std::vector<float> gradient(20);
  const int64_t begin = MonotonicNanos();
  ASSERT_TRUE(stage->ForwardUnit({0, 1}, {}, {.size = 3}, activations, *stream).ok());
  EXPECT_GE(MsSince(begin), 20);
  const int64_t backward = MonotonicNanos();
  ASSERT_TRUE(stage->BackwardUnit({0, 1}, {}, {.size = 3}, activations, {gradient.data(), 20}, *stream).ok());
  EXPECT_GE(MsSince(backward), 20);
  EXPECT_LT(MsSince(begin), 15'000) << "not the time of the whole model";
  EXPECT_EQ(gradient[0], 3);
}

// As for the shards of its weights; without it, the recorded time passes while it waits.
TEST(Replay, AUnitThatHasWaitedTakesItsWholeTime) {
  const auto model = MakeReplayedModel(Recorded());
  const auto device = MakeCpuDevice();
  const auto stream = device->NewStream(StreamKind::kCompute, "compute");
  std::vector<float> gradient(130);
  const Span span{gradient.data(), gradient.size()};
  Activations activations;
  ASSERT_EQ(model->layers(), 4u);
  ASSERT_TRUE(model->ForwardUnit({0, 2}, {}, {.size = 4}, activations, *stream).ok());
  absl::SleepFor(absl::Milliseconds(30));
  const int64_t forward = MonotonicNanos();
  ASSERT_TRUE(
      model->ForwardUnit({2, 4}, {.weights = {}, .after_wait = true}, {.size = 4}, activations, *stream)
          .ok());
  EXPECT_GE(MsSince(forward), 20 * 30. / 60) << "that of \"middle\" and \"last\"";
  ASSERT_TRUE(model->BackwardUnit({2, 4}, {}, {.size = 4}, activations, span, *stream).ok());
  absl::SleepFor(absl::Milliseconds(30));
  const int64_t backward = MonotonicNanos();
  ASSERT_TRUE(
      model
          ->BackwardUnit({1, 2}, {.weights = {}, .after_wait = true}, {.size = 4}, activations, span, *stream)
          .ok());
  EXPECT_GE(MsSince(backward), 10) << "that of \"first\"";
}

TEST(Replay, ABackwardPassInTwoPartsHasItsGradientsInTheSecond) {
  const auto model = MakeReplayedModel(Recorded());
  const auto device = MakeCpuDevice();
  const auto stream = device->NewStream(StreamKind::kCompute, "compute");
  std::vector<float> gradient(130);
  Activations activations;
  for (const BackwardPart part : {BackwardPart::kInput, BackwardPart::kWeight}) {
    const int64_t begin = MonotonicNanos();
    ASSERT_TRUE(model
                    ->BackwardUnit({0, model->layers()}, {.weights = {}, .part = part}, {.size = 4},
                                   activations, {gradient.data(), gradient.size()}, *stream)
                    .ok());
    EXPECT_GE(MsSince(begin), 30);
    for (const size_t first : {size_t{0}, size_t{100}, size_t{120}})
      EXPECT_EQ(gradient[first], part == BackwardPart::kInput ? 0 : 4);
  }
}

TEST(Replay, IsCutOnlyIfTheSizeOfActivationsIsKnown) {
  const auto model = MakeReplayedModel(Recorded());
  EXPECT_TRUE(model->CutPoints().empty());
  EXPECT_FALSE(std::move(*model).TakeStages({{0, 2}}).ok());
  const auto gpt = MakeReplayedModel(LoadWorkload("gpt_mini").value());
  EXPECT_EQ(gpt->CutPoints().size(), 7) << "between the embeddings, 6 blocks and the last normalization";
  EXPECT_TRUE(std::move(*gpt).TakeStages({{0, gpt->CutPoints()[0]}}).ok());
}

TEST(Replay, AFasterDeviceHasItsGradientsEarlier) {
  TrainingOptions options;
  options.workload = "resnet50";
  options.compute_speedup = 4;
  const auto row = ModelOf(options).value();
  const auto device = MakeCpuDevice();
  const auto ops = MakeReferenceOps();
  const auto data = DataOf(options).value();
  const auto model = row.make(data.train.spec(), *ops).value();
  EXPECT_NEAR(static_cast<double>(model->parameters().count()), 25.6e6, 0.1e6);
  const auto stream = device->NewStream(StreamKind::kCompute, "compute");
  BatchScore score;
  const int64_t begin = MonotonicNanos();
  Activations activations;
  ASSERT_TRUE(model->Forward({}, {.size = 32}, activations, &score, *stream).ok());
  EXPECT_GE(MsSince(begin), 63.3 / 4);
  EXPECT_LT(MsSince(begin), 63.3);
}

TEST(Replay, AWorkloadSetsTheBatchAndDisablesEvaluation) {
  TrainingOptions options;
  options.workload = "vgg16";
  ASSERT_TRUE(ApplyWorkload(options).ok());
  EXPECT_GT(options.batch, 0);
  EXPECT_FALSE(options.evaluate);
  EXPECT_EQ(options.momentum, 0);
  const TrainingOptions once = options;
  ASSERT_TRUE(ApplyWorkload(options).ok()) << "a child process does it again";
  EXPECT_EQ(options.batch, once.batch);
}

TEST(Replay, RejectsFlagsThatContradictAWorkload) {
  const auto refused = [](auto change) {
    TrainingOptions options;
    options.workload = "resnet50";
    change(options);
    return !ApplyWorkload(options).ok();
  };
  EXPECT_FALSE(refused([](TrainingOptions&) {}));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.model = "cnn"; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.data = "synthetic"; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.batch = 7; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.reference_workers = 2; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.recompute = true; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.dropout = .1; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.eval_every = 5; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.workload = "resnet5"; }));
  EXPECT_TRUE(refused([](TrainingOptions& o) { o.workload = "/no/such/file.csv"; }));
  TrainingOptions speedup;
  speedup.compute_speedup = 2;
  EXPECT_FALSE(ApplyWorkload(speedup).ok());
}

TEST(UnknownModel, AnUnknownNameSuggestsTheNearest) {
  std::vector<std::string> names;
  for (const ModelRow& row : Models()) names.emplace_back(row.name);
  EXPECT_EQ(FindModel("mpl").status().message(),
            absl::StrCat("unknown model 'mpl'; did you mean 'mlp'? Use one of ", absl::StrJoin(names, ", ")));
}

TEST(UnknownModel, AModelThatCanOnlyBeReplayedNamesTheFlagForIt) {
  const struct {
    const char *model, *says;
  } cases[] = {
      {"./mine.csv",
       "'./mine.csv' is a file, not a model; to replay the times in it, use --workload ./mine.csv"},
      {"mine.csv", "'mine.csv' is a file, not a model; to replay the times in it, use --workload mine.csv"},
      {"models/mine",
       "'models/mine' is a file, not a model; to replay the times in it, use --workload models/mine"},
      {"vgg16", "psring cannot train 'vgg16'; to replay its recorded times, use --workload vgg16"},
      {"BERT-base",
       "psring cannot train 'BERT-base'; to replay its recorded times, use --workload bert_base"}};
  for (const auto& [model, says] : cases) EXPECT_EQ(FindModel(model).status().message(), says);
}

}  // namespace
}  // namespace psring
