// A model that is cut into stages computes what it computes whole.
#include "trainer/models/model_stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/replayed_model.h"

namespace psring {
namespace {

using testing::ElementsAre;
using Cuts = std::vector<size_t>;

struct StagesCase {
  const char* model;
  double dropout = 0;
  Keep keep = Keep::kAll;
  DType type = DType::kFloat32;
};
std::ostream& operator<<(std::ostream& out, const StagesCase& c) { return out << c.model; }

const DataSplits& SamplesFor(const std::string& model) {
  if (model.starts_with("dlrm")) return SmallClicks();
  return model.starts_with("gpt") ? SmallText() : model.starts_with("resnet") ? SmallPictures() : SmallData();
}

std::unique_ptr<Model> MakeSmall(const std::string& name, double dropout, Ops& ops) {
  TrainingOptions options{.model = name};
  if (name.starts_with("gpt")) options = TinyGpt("single");
  if (name.starts_with("resnet")) options.width = 16;
  options.dropout = dropout;
  return *ModelOf(options)->make(SamplesFor(name).train.spec(), ops);
}

constexpr int kSamplesAtMost = 6;

// A model, its memory and the results of one batch.
struct StageRank {
  std::unique_ptr<Model> model;
  std::vector<LayerRange> stages;  // of the whole model
  Activations activations;
  std::vector<float> weights, buffers, gradient, outputs;
  BatchScore score = {};

  StageRank(std::unique_ptr<Model> m, std::vector<LayerRange> of, Keep keep, Device& device)
      : model(std::move(m)),
        stages(std::move(of)),
        activations(*model->NewActivations(kSamplesAtMost, keep, device)),
        weights(model->InitialWeights(1)),
        buffers(model->parameters().initial_buffers()),
        gradient(weights.size()) {}

  // The layers of a stage, in this model.
  LayerRange LayersOf(size_t stage) const {
    size_t first = 0;
    for (size_t s = 0; s < stage; ++s) first += stages[s].end - stages[s].first;
    return {first, first + stages[stage].end - stages[stage].first};
  }
};

// The models of a pipeline on one thread, and the whole one.
class Stages : public testing::TestWithParam<StagesCase> {
 protected:
  void SetUp() override {
    if (GetParam().type == DType::kBFloat16 && BFloat16Support() == BFloat16::kNone) {
      GTEST_SKIP() << "needs AVX-512";
    }
    ops_ = MakeOneDnnOps(/*threads=*/1, GetParam().type);
    memory_ = *BatchMemory::Create(data().spec(), kSamplesAtMost, *device_);
  }

  const Dataset& data() const { return SamplesFor(GetParam().model).train; }
  std::unique_ptr<Model> Whole() { return MakeSmall(GetParam().model, GetParam().dropout, *ops_); }
  StageRank Make(std::unique_ptr<Model> model, std::vector<LayerRange> stages) {
    return {std::move(model), std::move(stages), GetParam().keep, *device_};
  }
  StageRank Take(const std::vector<LayerRange>& stages) {
    auto model = std::move(*Whole()).TakeStages(stages);
    EXPECT_TRUE(model.ok()) << model.status();
    return Make(*std::move(model), stages);
  }
  // Of `count` stages; fewer if the model has fewer.
  std::vector<LayerRange> Balanced(int count) {
    const auto model = Whole();
    count = std::min(count, static_cast<int>(model->CutPoints().size()) + 1);
    return *StagesBetween(*model, *BalancedCuts(*model, std::vector<double>(model->layers(), 1), count));
  }

  void Load(const std::vector<int64_t>& samples) {
    batch_ = *memory_.Load(data(), samples, *stream_);
    seeds_.clear();
    for (const int64_t sample : samples) seeds_.push_back(static_cast<uint64_t>(sample) * 7 + 1);
  }
  ModelState StateOf(StageRank& t) {
    return {.weights = {t.weights.data(), t.weights.size()},
            .buffers = {t.buffers.data(), t.buffers.size()},
            .sample_seeds = seeds_.data()};
  }
  // By units of up to three layers.
  void Forward(LayerRange layers, StageRank& t) {
    for (size_t first = layers.first; first < layers.end; first += 3) {
      const LayerRange unit{first, std::min(first + 3, layers.end)};
      const auto y = t.model->ForwardUnit(unit, StateOf(t), batch_, t.activations, *stream_);
      ASSERT_TRUE(y.ok()) << y.status();
      t.outputs.assign(y->count, 0);
      if (y->count > 0) ops_->Convert(*y, {t.outputs.data(), y->count}, *stream_);
    }
  }
  void Loss(StageRank& t) {
    memory_.ClearScore(*stream_);
    ASSERT_TRUE(t.model->Loss(batch_, t.activations, memory_.score(), *stream_).ok());
    memory_.DownloadScore(*stream_);
    ASSERT_TRUE(stream_->Synchronize().ok());
    t.score = memory_.downloaded_score();
  }
  void Backward(LayerRange layers, StageRank& t, BackwardPart part = BackwardPart::kBoth) {
    const Span gradient{t.gradient.data(), t.gradient.size()};
    ModelState state = StateOf(t);
    state.part = part;
    for (size_t end = layers.end; end > layers.first;) {
      const LayerRange unit{std::max(end, layers.first + 3) - 3, end};
      ASSERT_TRUE(t.model->BackwardUnit(unit, state, batch_, t.activations, gradient, *stream_).ok());
      end = unit.first;
    }
  }
  void Copy(const Span& to, const Span& from) {
    ASSERT_EQ(to.count, from.count);
    ASSERT_EQ(to.type, from.type);
    ASSERT_EQ(to.data == nullptr, batch_.size == 0);
    if (batch_.size > 0) stream_->Copy(to.data, from.data, from.bytes());
  }

  // Forward, loss and backward of the batch through the stages of all `ranks`, in the order of the model.
  void Run(std::vector<StageRank>& ranks) {
    std::map<size_t, std::pair<StageRank*, size_t>> stages;  // by first layer
    for (StageRank& rank : ranks) {
      for (size_t s = 0; s < rank.stages.size(); ++s) stages[rank.stages[s].first] = {&rank, s};
    }
    const auto edges_of = [&](const auto& stage) {
      return stage->second.first->model->EdgesOf(stage->second.second, stage->second.first->activations,
                                                 batch_.size);
    };
    for (auto stage = stages.begin(); stage != stages.end(); ++stage) {
      auto& [rank, s] = stage->second;
      if (stage != stages.begin()) Copy(edges_of(stage).input, edges_of(std::prev(stage)).output);
      Forward(rank->LayersOf(s), *rank);
    }
    EXPECT_EQ(edges_of(stages.begin()).input.data, nullptr);
    EXPECT_EQ(edges_of(std::prev(stages.end())).output.data, nullptr);
    Loss(*stages.rbegin()->second.first);
    for (auto stage = stages.end(); stage != stages.begin();) {
      --stage;
      auto& [rank, s] = stage->second;
      if (std::next(stage) != stages.end()) {
        Copy(edges_of(stage).output_gradient, edges_of(std::next(stage)).input_gradient);
      }
      Backward(rank->LayersOf(s), *rank);
    }
    ASSERT_TRUE(stream_->Synchronize().ok());
  }

  // A full batch, an empty one and a short one through these stages, given by rank, and through the whole
  // model.
  void ExpectWhole(const std::vector<std::vector<LayerRange>>& of_ranks) {
    std::vector<StageRank> whole, ranks;
    whole.push_back(Make(Whole(), {{0, Whole()->layers()}}));
    for (const auto& stages : of_ranks) ranks.push_back(Take(stages));
    const auto is_last = [&](const StageRank& t) { return t.stages.back().end == whole[0].model->layers(); };
    const StageRank& last = *std::ranges::find_if(ranks, is_last);
    for (const std::vector<int64_t>& samples :
         {std::vector<int64_t>{0, 1, 2, 3, 4, 5}, std::vector<int64_t>{}, std::vector<int64_t>{7, 9, 11}}) {
      SCOPED_TRACE(absl::StrCat(of_ranks.size(), " ranks, ", samples.size(), " samples"));
      Load(samples);
      Run(whole);
      Run(ranks);
      EXPECT_EQ(last.outputs, whole[0].outputs);
      EXPECT_EQ(last.score.loss_sum, whole[0].score.loss_sum);
      EXPECT_EQ(last.score.correct, whole[0].score.correct);
      ExpectSameTensors(ranks, whole[0]);
    }
  }
  // Gradients and buffers. The gradient of a tensor of two stages is the sum of theirs.
  static void ExpectSameTensors(const std::vector<StageRank>& ranks, const StageRank& whole) {
    const ParameterLayout& layout = whole.model->parameters();
    std::vector<float> sum(layout.count()), buffers(whole.buffers.size());
    std::map<std::string, int> parts;
    for (const StageRank& rank : ranks) {
      std::vector<float> gradient(layout.count());
      const ParameterLayout& own = rank.model->parameters();
      PutPart(*PartOf(layout.tensors(), own.tensors()), rank.gradient.data(), gradient.data());
      PutPart(*PartOf(layout.buffers(), own.buffers()), rank.buffers.data(), buffers.data());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
      for (const Tensor& tensor : own.tensors()) ++parts[tensor.name];
    }
    EXPECT_EQ(buffers, whole.buffers);
    for (const Tensor& tensor : layout.tensors()) {
      const auto of = [&](const std::vector<float>& all) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(tensor.first);
        return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(tensor.count));
      };
      const std::vector<float> expected = of(whole.gradient);
      ASSERT_GE(parts[tensor.name], 1) << tensor.name;
      const bool is_zero = std::ranges::all_of(expected, [](float value) { return value == 0; });
      if (parts[tensor.name] == 1 || is_zero) {
        EXPECT_EQ(of(sum), expected) << tensor.name;
      } else {
        EXPECT_EQ(tensor.name, "transformer.wte.weight");
        EXPECT_LE(RelativeL2(of(sum), expected), 1e-6);
      }
    }
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Stream> stream_ = device_->NewStream(StreamKind::kCompute, "compute");
  std::unique_ptr<Ops> ops_;
  BatchMemory memory_;
  Batch batch_;
  std::vector<uint64_t> seeds_;
};

TEST_P(Stages, OnARankEachGiveTheBitsOfTheWholeModel) {
  for (const int count : {1, 2, 3, 4, 100}) {
    std::vector<std::vector<LayerRange>> ranks;
    for (const LayerRange& stage : Balanced(count)) ranks.push_back({stage});
    ExpectWhole(ranks);
  }
}

TEST_P(Stages, OnEverySecondRankGiveTheBitsOfTheWholeModel) {
  const std::vector<LayerRange> three = Balanced(3), four = Balanced(4);
  ExpectWhole({{three[0], three[2]}, {three[1]}});
  if (four.size() == 4) ExpectWhole({{four[0], four[2]}, {four[1], four[3]}});
  ExpectWhole({three});
}

TEST_P(Stages, HaveTheInitialWeightsOfTheWholeModel) {
  const auto whole = Whole();
  const std::vector<float> all = whole->InitialWeights(5);
  std::vector<float> joined(all.size());
  for (const LayerRange& stage : Balanced(100)) {
    const auto model = std::move(*Whole()).TakeStages({stage}).value();
    const LayoutPart part = *PartOf(whole->parameters().tensors(), model->parameters().tensors());
    const std::vector<float> own = model->InitialWeights(5);
    std::vector<float> taken(own.size());
    TakePart(part, all.data(), taken.data());
    EXPECT_EQ(own, taken);
    PutPart(part, own.data(), joined.data());
  }
  EXPECT_EQ(joined, all);
}

// As in interleaved schedules, which forward a batch through a stage while another one is in a later stage.
TEST_P(Stages, ShareNoActivations) {
  const std::vector<LayerRange> stages = Balanced(3);
  StageRank both = Take({stages[0], stages[2]}), middle = Take({stages[1]});
  const auto edges = [&](StageRank& t, size_t stage) {
    return t.model->EdgesOf(stage, t.activations, batch_.size);
  };
  const auto backward_of_last = [&](bool disturb) {
    Load({0, 1, 2, 3, 4, 5});
    Forward(both.LayersOf(0), both);
    Copy(edges(middle, 0).input, edges(both, 0).output);
    Forward(middle.LayersOf(0), middle);
    Copy(edges(both, 1).input, edges(middle, 0).output);
    Forward(both.LayersOf(1), both);
    Loss(both);
    if (disturb) {
      Load({10, 11, 12, 13, 14, 15});
      Forward(both.LayersOf(0), both);
      Load({0, 1, 2, 3, 4, 5});
    }
    std::ranges::fill(both.gradient, 0.0f);
    Backward(both.LayersOf(1), both);
    EXPECT_TRUE(stream_->Synchronize().ok());
    std::vector<float> all = both.gradient, input(edges(both, 1).input_gradient.count);
    ops_->Convert(edges(both, 1).input_gradient, {input.data(), input.size()}, *stream_);
    all.insert(all.end(), input.begin(), input.end());
    return all;
  };
  const std::vector<float> expected = backward_of_last(/*disturb=*/false);
  EXPECT_EQ(backward_of_last(/*disturb=*/true), expected);
}

// As in a zero-bubble schedule: the gradients of the weights follow those of several batches' inputs.
TEST_P(Stages, WeightGradientsMayFollowAfterOtherBatches) {
  struct InFlight {
    StageRank t;
    BatchMemory memory;
    Batch batch;
    std::vector<uint64_t> seeds;
    std::vector<float> expected, of_input = {};
  };
  const LayerRange layers{0, Whole()->layers()};
  StageRank joint = Make(Whole(), {layers});
  std::vector<InFlight> all;
  for (const std::vector<int64_t>& samples :
       {std::vector<int64_t>{0, 1, 2, 3, 4, 5}, std::vector<int64_t>{}, std::vector<int64_t>{7, 9, 11}}) {
    memory_ = *BatchMemory::Create(data().spec(), kSamplesAtMost, *device_);
    Load(samples);
    StageRank t(Whole(), {layers}, Keep::kForWeights, *device_);
    for (StageRank* const one : {&joint, &t}) {
      Forward(layers, *one);
      Loss(*one);
    }
    Backward(layers, joint);
    ASSERT_TRUE(stream_->Synchronize().ok());
    all.push_back({std::move(t), std::move(memory_), batch_, seeds_, joint.gradient});
  }
  const auto backward = [&](InFlight& one, BackwardPart part) {
    batch_ = one.batch;
    seeds_ = one.seeds;
    std::ranges::fill(one.t.gradient, batch_.size > 0 ? 0.0f : 1.0f);
    Backward(layers, one.t, part);
    ASSERT_TRUE(stream_->Synchronize().ok());
  };
  for (InFlight& one : all) {
    backward(one, BackwardPart::kInput);
    one.of_input = one.t.gradient;
  }
  const std::vector<ReadyRange> complete = joint.model->CompleteAfterLayers();
  const std::vector<size_t> early = joint.model->EarlyElements();
  for (InFlight& one : all) {
    backward(one, BackwardPart::kWeight);
    const float before = batch_.size > 0 ? 0.0f : 1.0f;  // where a part writes nothing
    for (size_t l = 0; l < layers.end; ++l) {
      SCOPED_TRACE(absl::StrCat("layer ", l, ", ", batch_.size, " samples"));
      for (const bool is_early : {true, false}) {
        const auto [first, count] =
            WrittenBy(is_early ? BackwardPart::kInput : BackwardPart::kWeight, complete[l], early[l]);
        const auto part = [&](const std::vector<float>& of) {
          const auto begin = of.begin() + static_cast<std::ptrdiff_t>(first);
          return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count));
        };
        EXPECT_EQ(part(is_early ? one.of_input : one.t.gradient), part(one.expected));
        EXPECT_EQ(part(is_early ? one.t.gradient : one.of_input), std::vector<float>(count, before));
      }
    }
  }
}

std::string NameOfCase(const StagesCase& c) {
  std::string name = absl::StrCat(
      c.model, c.dropout > 0 ? "_with_dropout" : "", c.keep == Keep::kUnitInputs ? "_computed_again" : "",
      c.keep == Keep::kForWeights ? "_for_weights" : "", c.type == DType::kBFloat16 ? "_bfloat16" : "");
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Stages,
                         testing::Values(StagesCase{"mlp-small"}, StagesCase{"cnn"},
                                         StagesCase{"cnn", 0, Keep::kAll, DType::kBFloat16},
                                         StagesCase{"gpt-nano"}, StagesCase{"gpt-nano", 0, Keep::kUnitInputs},
                                         StagesCase{"gpt-nano", 0, Keep::kForWeights},
                                         StagesCase{"gpt-nano", .2},
                                         StagesCase{"gpt-nano", .2, Keep::kUnitInputs},
                                         StagesCase{"gpt-nano", .2, Keep::kUnitInputs, DType::kBFloat16},
                                         StagesCase{"resnet18"},
                                         StagesCase{"resnet18", 0, Keep::kUnitInputs}),
                         [](const auto& info) { return NameOfCase(info.param); });

class Cutting : public testing::Test {
 protected:
  std::unique_ptr<Model> Make(const char* name, double dropout = 0) {
    return MakeSmall(name, dropout, *ops_);
  }
  std::unique_ptr<Ops> ops_ = MakeOneDnnOps(/*threads=*/1);
};

TEST_F(Cutting, IsWhereOneValueCrosses) {
  EXPECT_THAT(Make("mlp-small")->CutPoints(), ElementsAre(1, 2));
  EXPECT_THAT(Make("cnn")->CutPoints(), ElementsAre(1, 2, 3, 4));
  // Between the two halves of a block too; with dropout, which is a layer, a half has one more.
  EXPECT_THAT(Make("gpt-nano")->CutPoints(), ElementsAre(1, 5, 8, 12, 15, 16));
  EXPECT_THAT(Make("gpt-nano", .1)->CutPoints(), ElementsAre(1, 2, 7, 11, 16, 20, 21));
  EXPECT_THAT(Make("dlrm-small")->CutPoints(), ElementsAre()) << "its tables cannot be cut";
  EXPECT_THAT(TrainableCuts(*Make("mlp-small")), ElementsAre(1, 2));
  EXPECT_THAT(TrainableCuts(*Make("gpt-nano")), ElementsAre(1, 5, 8, 12, 15))
      << "the last layer has the weights of the first";
  const auto cnn = Make("cnn");
  EXPECT_EQ(cnn->BoundaryElements(3), 2 * 2 * 64);
  EXPECT_EQ(cnn->BoundaryElements(4), 128);
}

TEST_F(Cutting, RejectsOtherStages) {
  const auto error_of = [&](const char* name, const std::vector<LayerRange>& stages) {
    return std::string(std::move(*Make(name)).TakeStages(stages).status().message());
  };
  const char* const expected =
      "the stages of this model are increasing and begin and end at the layers 0, 1, 5, 8, 12, 15, 16, 17";
  const std::vector<std::vector<LayerRange>> wrong = {
      {}, {{0, 2}}, {{2, 5}}, {{5, 5}}, {{5, 8}, {1, 5}}, {{0, 5}, {1, 8}}, {{16, 18}}};
  for (const std::vector<LayerRange>& stages : wrong) {
    EXPECT_EQ(error_of("gpt-nano", stages), expected);
  }
  EXPECT_THAT(error_of("dlrm-small", {{0, 1}}), Has("at the layers 0, "));
  auto stage = std::move(*Make("mlp-small")).TakeStages({{0, 2}});
  EXPECT_THAT((*stage)->CutPoints(), ElementsAre());
  EXPECT_EQ(std::move(**stage).TakeStages({{0, 2}}).status().message(), "the model is cut already");
}

TEST_F(Cutting, NamesTheCutsThatWork) {
  const auto cnn = Make("cnn"), dlrm = Make("dlrm-small");
  const auto stages = StagesBetween(*cnn, {1, 3});
  ASSERT_TRUE(stages.ok());
  ASSERT_EQ(stages->size(), 3);
  EXPECT_EQ((*stages)[0].first, 0);
  EXPECT_EQ((*stages)[1].first, 1);
  EXPECT_EQ((*stages)[1].end, 3);
  EXPECT_EQ((*stages)[2].end, 5);
  EXPECT_EQ(StagesBetween(*cnn, {})->size(), 1);
  for (const Cuts& cuts : {Cuts{0}, Cuts{5}, Cuts{99}, Cuts{3, 1}, Cuts{2, 2}}) {
    EXPECT_EQ(StagesBetween(*cnn, cuts).status().message(),
              absl::StrCat("--cuts ", absl::StrJoin(cuts, ","),
                           ": the model can be cut before the layers 1,2,3,4; give some of them, in "
                           "increasing order"));
  }
  EXPECT_EQ(StagesBetween(*dlrm, {1}).status().message(), "this model cannot be cut into stages; omit --pp");
  const std::vector<double> costs(dlrm->layers(), 1);
  EXPECT_EQ(BalancedCuts(*dlrm, costs, 2).status().message(),
            "this model cannot be cut into stages; omit --pp");
  EXPECT_THAT(*BalancedCuts(*dlrm, costs, 1), ElementsAre());
  for (const int count : {0, 6}) {
    EXPECT_EQ(BalancedCuts(*cnn, {1, 1, 1, 1, 1}, count).status().message(),
              absl::StrCat("this model can be cut into 1 to 5 stages, not ", count, "; give another --pp"));
  }
}

TEST_F(Cutting, BalancesStagesThenBoundaries) {
  const auto cnn = Make("cnn");
  EXPECT_THAT(*BalancedCuts(*cnn, {1, 1, 1, 1, 4}, 2), ElementsAre(4));
  EXPECT_THAT(*BalancedCuts(*cnn, {4, 1, 1, 1, 1}, 2), ElementsAre(1));
  EXPECT_THAT(*BalancedCuts(*cnn, {4, 0, 0, 0, 4}, 2), ElementsAre(4)) << "the smallest boundary";
  EXPECT_THAT(*BalancedCuts(*cnn, {4, 0, 0, 0, 4}, 3), ElementsAre(3, 4));
  EXPECT_THAT(*BalancedCuts(*cnn, {1, 1, 4, 2, 1}, 3), ElementsAre(1, 3)) << "the pooling has no weights";
  EXPECT_THAT(*BalancedCuts(*cnn, {0, 0, 0, 0, 0}, 5), ElementsAre(1, 2, 3, 4));
}

TEST_F(Cutting, IsAsGoodAsTheBestOfAllCuts) {
  const auto gpt = Make("gpt-nano", .1);
  const Cuts points = gpt->CutPoints();
  std::mt19937 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<double> costs;
    for (size_t l = 0; l < gpt->layers(); ++l) costs.push_back(.1 * static_cast<double>(random() % 4));
    // The slowest stage, in tenths, and the boundaries' elements.
    const auto value_of = [&](const Cuts& cuts) {
      double slowest = 0;
      size_t elements = 0;
      const std::vector<LayerRange> stages = StagesBetween(*gpt, cuts).value();
      for (const LayerRange& stage : stages) {
        double cost = 0;
        for (size_t l = stage.first; l < stage.end; ++l) cost += costs[l];
        slowest = std::max(slowest, cost);
        if (stage.first > 0) elements += gpt->BoundaryElements(stage.first);
      }
      return std::pair(std::llround(10 * slowest), elements);
    };
    auto best = value_of({points[0], points[1]});
    for (size_t a = 0; a < points.size(); ++a) {
      for (size_t b = a + 1; b < points.size(); ++b) best = std::min(best, value_of({points[a], points[b]}));
    }
    EXPECT_EQ(value_of(*BalancedCuts(*gpt, costs, 3)), best) << testing::PrintToString(costs);
  }
}

TEST_F(Cutting, PartsAreMatchedByNameAndShape) {
  ParameterLayout whole, part, wrong, unknown;
  whole.Add("a", {3});
  whole.Add("b", {2, 5});
  whole.Add("c", {4});
  part.Add("b", {2, 5});
  part.Add("c", {4});
  wrong.Add("b", {5, 2});
  unknown.Add("d", {1});
  const LayoutPart ranges = *PartOf(whole.tensors(), part.tensors());
  std::vector<float> all(whole.count()), some(part.count(), -1.0f), back(whole.count(), -2.0f);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i);
  TakePart(ranges, all.data(), some.data());
  EXPECT_EQ(some[0], 16);
  EXPECT_EQ(some[9], 25);
  EXPECT_EQ(some[10], -1) << "padding";
  EXPECT_EQ(some[16], 32);
  PutPart(ranges, some.data(), back.data());
  EXPECT_EQ(back[0], -2) << "of another part";
  EXPECT_EQ(back[25], 25);
  EXPECT_EQ(back[35], 35);
  EXPECT_EQ(PartOf(whole.tensors(), wrong.tensors()).status().message(),
            "tensor b, of shape [5, 2], is not in this shape in the whole model");
  EXPECT_EQ(PartOf(whole.tensors(), unknown.tensors()).status().message(),
            "tensor d, of shape [1], is not in the whole model");
}

}  // namespace
}  // namespace psring
