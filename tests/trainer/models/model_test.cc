#include "trainer/models/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "tests/common/ops/reference_ops.h"
#include "tests/trainer/cluster.h"
#include "trainer/data/data.h"
#include "trainer/data/sampler.h"
#include "trainer/data/sources.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/evaluation.h"
#include "trainer/tables/touched_rows.h"

namespace psring {
namespace {

// The first 11 samples of a text that repeats `line`.
Dataset ElevenOf(const std::string& line,
                 const std::function<absl::StatusOr<DataSplits>(const std::string&)>& read) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += line;
  return FromText(text, read).train.Part({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
}

// Tests run gpt-nano also with dropout.
constexpr char kWithDropout[] = "gpt-nano-with-dropout";

bool ReadsText(const std::string& model) {
  return model == kWithDropout || (*FindModel(model))->size.context != ModelSize::kFixed;
}

bool HasTables(const std::string& model) { return FindModel(model).ok() && (*FindModel(model))->has_tables; }

Dataset DataFor(const std::string& model) {
  if (ReadsText(model)) {
    return ElevenOf("The quick brown fox jumps over the lazy dog, and it is back again.\n",
                    [](const std::string& path) { return ReadText(path, /*context=*/6); });
  }
  if (model == "dlrm-small") return MakeClicks({.rows = 20, .train = 11, .test = 1}, 1).train;
  if (model == "skipgram") {
    return ElevenOf("the quick brown fox jumps over the lazy dog ",
                    [](const std::string& path) { return ReadWords(path, /*seed=*/1); });
  }
  return MakeSyntheticData({.height = 10, .width = 10, .train = 11, .test = 1}, 1).train;
}

bool IsResidual(const std::string& model) { return model.starts_with("resnet"); }

// Small, if sizes can be chosen.
std::unique_ptr<Model> SmallModel(const std::string& name, const SampleSpec& samples, Ops& ops) {
  TrainingOptions options;
  options.model = name;
  if (name == kWithDropout) {
    options.model = "gpt-nano";
    options.dropout = .2;
  }
  if (IsResidual(name)) options.width = 16;
  if (HasTables(name)) options.width = 8;
  if (ReadsText(name)) {
    options.layers = 2;
    options.width = 8;
    options.heads = 2;
    options.context = 6;
  }
  return *ModelOf(options)->make(samples, ops);
}

// A model with its weights, and a batch.
struct Fixture {
  std::unique_ptr<Device> device = MakeCpuDevice();
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream = device->NewStream(StreamKind::kCompute, "compute");
  Dataset data;
  std::unique_ptr<Model> model;
  Activations activations;
  std::vector<float> weights, buffers, gradient;
  std::vector<std::vector<float>> inputs;
  std::vector<int32_t> labels;
  std::vector<uint64_t> seeds;
  std::vector<float> tables;
  TouchedRows rows;

  // The definitions would take long for deep networks.
  explicit Fixture(const std::string& name, int max_batch = 4)
      : ops(IsResidual(name) ? MakeOneDnnOps(/*threads=*/1) : MakeReferenceOps()),
        data(DataFor(name)),
        model(SmallModel(name, data.spec(), *ops)),
        activations(*model->NewActivations(max_batch, Keep::kAll, *device)),
        weights(model->InitialWeights(1)),
        buffers(model->parameters().initial_buffers()),
        gradient(weights.size()),
        labels(max_batch * data.spec().labels),
        seeds(max_batch, 3),
        tables(model->parameters().table_elements()),
        rows(model->parameters(), data.spec()) {
    for (const TensorSpec& input : data.spec().inputs) inputs.emplace_back(max_batch * input.count());
    // Not the initial values: those of skipgram's targets are 0, where the gradient of words is 0.
    Random random(9);
    for (float& value : tables) value = random.Uniform(-.5f, .5f);
  }

  ConstSpan weight_span() const { return {weights.data(), weights.size()}; }
  Span buffer_span() { return {buffers.data(), buffers.size()}; }
  Batch Gather(const std::vector<int64_t>& indices) {
    std::vector<void*> to;
    Batch batch{.size = static_cast<int>(indices.size()), .labels = labels.data()};
    for (size_t i = 0; i < inputs.size(); ++i) {
      to.push_back(inputs[i].data());
      batch.inputs[i] = inputs[i].data();
    }
    data.Gather(indices, to, labels.data());
    EXPECT_TRUE(rows.Plan(data, {indices}).ok());
    rows.ReadFrom(tables.data());
    return batch;
  }
  double Loss(const Batch& batch, PassMode mode = PassMode::kTraining) {
    BatchScore score;
    const ModelState state{.weights = weight_span(),
                           .buffers = buffer_span(),
                           .mode = mode,
                           .rows = &rows,
                           .lookups = &rows.batch(0),
                           .sample_seeds = seeds.data()};
    EXPECT_TRUE(model->Forward(state, batch, activations, &score, *stream).ok());
    EXPECT_TRUE(stream->Synchronize().ok());
    return score.loss_sum;
  }
  // Of the loss, from moving a weight by `move` to both sides.
  double Slope(size_t index, float move, const Batch& batch) { return Slope(weights[index], move, batch); }
  double Slope(float& value, float move, const Batch& batch) {
    const float before = value;
    value = before + move;
    const double above = Loss(batch);
    value = before - move;
    const double below = Loss(batch);
    value = before;
    return (above - below) / (2 * double{move});
  }
  void Backward(const Batch& batch) { Backward({0, model->layers()}, batch); }
  void Backward(LayerRange unit, const Batch& batch) {
    const Span to{gradient.data(), gradient.size()};
    const ModelState state{
        .weights = weight_span(), .rows = &rows, .lookups = &rows.batch(0), .sample_seeds = seeds.data()};
    EXPECT_TRUE(model->BackwardUnit(unit, state, batch, activations, to, *stream).ok());
  }
};

class EveryModel : public testing::TestWithParam<std::string> {};

TEST_P(EveryModel, BackwardIsTheDerivativeOfForward) {
  Fixture f(GetParam());
  const Batch batch = f.Gather({0, 1, 2});
  f.Loss(batch);
  f.Backward(batch);
  // The steepest element of each tensor, moved a little to both sides.
  for (const Tensor& tensor : f.model->parameters().tensors()) {
    size_t steepest = tensor.first;
    for (size_t i = tensor.first; i < tensor.first + tensor.count; ++i) {
      if (std::abs(f.gradient[i]) > std::abs(f.gradient[steepest])) steepest = i;
    }
    // Where the slope is steep, only a little: ReLU's inputs cross 0. Rounding disturbs short moves,
    // crossings disturb long ones, and which of them depends on the compiler: one of three lengths must
    // agree.
    const float move =
        IsResidual(GetParam()) ? std::min(2e-4f, 1e-3f / std::abs(f.gradient[steepest])) : 2e-3f;
    const double share = IsResidual(GetParam()) ? .1 : .03;
    const float derivative = f.gradient[steepest];
    const auto agrees = [&](double slope) {
      return std::abs(derivative - slope) <= share * std::abs(slope) + 1e-3;
    };
    double slope = f.Slope(steepest, move, batch);
    for (const float length : {move / 3, move * 3}) {
      if (!agrees(slope)) slope = f.Slope(steepest, length, batch);
    }
    EXPECT_TRUE(agrees(slope)) << tensor.name << ": backward " << derivative << ", forward " << slope;
  }
}

TEST_P(EveryModel, TheGradientOfTablesIsTheDerivativeOfForward) {
  if (!HasTables(GetParam())) return;
  Fixture f(GetParam());
  const Batch batch = f.Gather({0, 1, 2});
  f.Loss(batch);
  f.Backward(batch);
  for (size_t t = 0; t < f.rows.tables().size(); ++t) {
    const Table& table = f.rows.tables()[t];
    const TouchedRows::OfTable touched = f.rows.of_tables()[t];
    ASSERT_FALSE(touched.rows.empty());
    for (size_t i = 0; i < touched.gradient.size(); i += 3) {
      const size_t row = static_cast<size_t>(touched.rows[i / table.width]);
      const double slope = f.Slope(f.tables[table.first + row * table.width + i % table.width], 2e-3f, batch);
      EXPECT_NEAR(touched.gradient[i], slope, .03 * std::abs(slope) + 1e-3) << table.name << ", row " << row;
    }
  }
}

TEST_P(EveryModel, CompletesLayersLastFirst) {
  Fixture f(GetParam());
  const Batch batch = f.Gather({3});
  f.Loss(batch);
  const float kUntouched = 12345;
  std::fill(f.gradient.begin(), f.gradient.end(), kUntouched);
  const std::vector<ReadyRange> complete = f.model->CompleteAfterLayers();
  ASSERT_EQ(complete.size(), f.model->layers());
  size_t rest = f.gradient.size();  // elements below are still to come
  for (size_t l = complete.size(); l-- > 0;) {
    f.Backward({l, l + 1}, batch);
    if (complete[l].count == 0) continue;
    ASSERT_EQ(complete[l].first + complete[l].count, rest);
    rest = complete[l].first;
    for (const Tensor& tensor : f.model->parameters().tensors()) {
      for (size_t i = tensor.first; tensor.first >= rest && i < tensor.first + tensor.count; ++i) {
        ASSERT_NE(f.gradient[i], kUntouched) << "declared as complete: element " << i;
      }
    }
  }
  EXPECT_EQ(rest, 0);
}

TEST_P(EveryModel, UnitsGiveTheBitsOfAllLayersAtOnce) {
  Fixture whole(GetParam()), parts(GetParam());
  const double loss = whole.Loss(whole.Gather({0, 1, 2}));
  whole.Backward(whole.Gather({0, 1, 2}));
  const Batch batch = parts.Gather({0, 1, 2});
  const ModelState state{.weights = parts.weight_span(),
                         .buffers = parts.buffer_span(),
                         .rows = &parts.rows,
                         .lookups = &parts.rows.batch(0),
                         .sample_seeds = parts.seeds.data()};
  const size_t layers = parts.model->layers(), middle = layers / 2;
  for (const LayerRange unit : {LayerRange{0, middle}, LayerRange{middle, layers}}) {
    EXPECT_TRUE(parts.model->ForwardUnit(unit, state, batch, parts.activations, *parts.stream).ok());
  }
  BatchScore score;
  EXPECT_TRUE(parts.model->Loss(batch, parts.activations, &score, *parts.stream).ok());
  EXPECT_EQ(score.loss_sum, loss);
  parts.Backward({middle, layers}, batch);
  parts.Backward({0, middle}, batch);
  EXPECT_EQ(parts.gradient, whole.gradient);
  EXPECT_EQ(parts.buffers, whole.buffers);
}

TEST_P(EveryModel, AnEmptyBatchHasNoGradient) {
  Fixture f(GetParam());
  const Batch batch = f.Gather({});
  EXPECT_EQ(f.Loss(batch), 0);
  std::fill(f.gradient.begin(), f.gradient.end(), 1.0f);
  f.Backward(batch);
  for (const float value : f.gradient) EXPECT_EQ(value, 0);
}

TEST_P(EveryModel, InitialWeightsDependOnTheSeed) {
  const Fixture f(GetParam());
  EXPECT_EQ(f.model->InitialWeights(1), f.weights);
  if (f.weights.empty()) return;  // all parameters are in tables
  EXPECT_NE(f.model->InitialWeights(2), f.weights);
  if (ReadsText(GetParam()) || IsResidual(GetParam())) return;
  // Uniform in +- 1 / sqrt(fan in): for the first layer's weight the fan in is the number of inputs.
  const Tensor& first = f.model->parameters().tensors().front();
  size_t fan_in = 1;
  for (size_t i = 1; i < first.shape.size(); ++i) fan_in *= first.shape[i];
  double largest = 0;
  for (size_t i = 0; i < first.count; ++i) largest = std::max<double>(largest, std::abs(f.weights[i]));
  EXPECT_LE(largest, 1 / std::sqrt(fan_in));
  EXPECT_GT(largest, .9 / std::sqrt(fan_in));
}

TEST_P(EveryModel, EvaluationCountsEachSampleOnce) {
  Fixture f(GetParam());
  // 11 samples in batches of 4: the last is short.
  BatchMemory memory = BatchMemory::Create(f.data.spec(), 4, *f.device).value();
  TouchedRows rows(f.model->parameters(), f.data.spec());
  ASSERT_TRUE(rows.Plan(f.data, EvaluationBatches(11, 4, 0, 1)).ok());
  rows.ReadFrom(f.tables.data());
  std::vector<int64_t> predictions;
  const auto score = Evaluate(*f.model, f.weight_span(), f.buffer_span(), f.data, 4, f.activations, memory,
                              *f.stream, &rows, [&](int64_t done) { predictions.push_back(done); });
  ASSERT_TRUE(score.ok()) << score.status();
  EXPECT_EQ(predictions.size(), 3u);
  EXPECT_EQ(predictions.back(), 11 * f.data.spec().labels);
  double loss = 0;
  for (int64_t i = 0; i < 11; ++i) loss += f.Loss(f.Gather({i}), PassMode::kEvaluation);
  EXPECT_NEAR(score->loss_sum, loss, 1e-4);
}

// With all other weights 0, the gradients of the branches' last biases differ only by what their dropout
// drops.
TEST(Dropout, DropsOtherElementsInEachLayer) {
  Fixture f(kWithDropout);
  for (const Tensor& tensor : f.model->parameters().tensors()) {
    if (tensor.shape.size() == 1 || tensor.name.find(".h.") == std::string::npos) continue;
    std::fill_n(f.weights.begin() + static_cast<int64_t>(tensor.first), tensor.count, 0.0f);
  }
  const Batch batch = f.Gather({0, 1, 2});
  f.Loss(batch);
  f.Backward(batch);
  std::set<std::vector<float>> gradients;
  for (const Tensor& tensor : f.model->parameters().tensors()) {
    if (!tensor.name.ends_with(".c_proj.bias")) continue;
    const auto first = f.gradient.begin() + static_cast<int64_t>(tensor.first);
    gradients.emplace(first, first + static_cast<int64_t>(tensor.count));
  }
  EXPECT_EQ(gradients.size(), 4) << "of two blocks with two branches each";
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const ModelRow& row : Models()) names.emplace_back(row.name);
  names.emplace_back(kWithDropout);
  return names;
}

TEST(Models, GetTheirDataByDefault) {
  const auto ops = MakeReferenceOps();
  for (const ModelRow& row : Models()) {
    TrainingOptions options;
    options.model = row.name;
    ASSERT_TRUE(ApplyModel(options).ok());
    EXPECT_EQ(options.data, row.default_data);
    const auto model = row.make(TypicalSpec(options.data, row.size.context), *ops);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(row.has_tables, !(*model)->parameters().tables().empty()) << row.name;
    options.data = "fashion-mnist";
    ASSERT_TRUE(ApplyModel(options).ok());
    EXPECT_EQ(options.data, "fashion-mnist") << "what the user gave";
  }
  TrainingOptions wrong{.model = "mlp", .text = "a"};
  EXPECT_EQ(
      ApplyModel(wrong).message(),
      "--text is for models of texts, such as --model gpt-nano, with --data text; this model is mlp, with "
      "--data fashion-mnist");
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, testing::ValuesIn(ModelNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace psring
