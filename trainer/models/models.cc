
#include "absl/strings/str_cat.h"
#include "common/suggestions/suggestions.h"
#include "common/workloads/workload.h"
#include "trainer/layers/conv.h"
#include "trainer/layers/linear.h"
#include "trainer/layers/max_pool.h"
#include "trainer/models/gpt.h"
#include "trainer/models/model.h"
#include "trainer/models/network.h"
#include "trainer/models/recommend.h"
#include "trainer/models/resnet.h"

namespace psring {
namespace {

// The shape of the pictures that model `name` reads. InvalidArgument: the samples are not pictures.
absl::StatusOr<ImageShape> PicturesOf(const SampleSpec& samples, const char* name) {
  if (samples.inputs.size() != 1 || samples.inputs[0].kind != TensorKind::kPicture) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model ", name, " reads pictures; choose other --data, or another --model"));
  }
  const std::vector<int>& shape = samples.inputs[0].shape;
  return ImageShape{.height = shape[0], .width = shape[1], .channels = shape[2]};
}

// Fully connected layers of these widths, ReLU between them.
absl::StatusOr<std::unique_ptr<Model>> MakePerceptron(const SampleSpec& samples,
                                                      const std::vector<int>& hidden, Ops& ops) {
  PSRING_ASSIGN_OR_RETURN(ImageShape image, PicturesOf(samples, "mlp"));
  Network::Builder network(samples);
  int inputs = static_cast<int>(image.count()), value = network.Input(0), number = 1;
  const auto add = [&](int outputs, bool relu) {
    const LinearConfig config{.inputs = inputs,
                              .outputs = outputs,
                              .activation = relu ? Activation::kRelu : Activation::kNone,
                              .image = image};
    value = network.Add(std::make_unique<LinearLayer>(absl::StrCat("fc", number++), config, network.layout()),
                        {value});
    inputs = outputs;
    image = {};
  };
  for (const int outputs : hidden) add(outputs, /*relu=*/true);
  add(samples.classes, /*relu=*/false);
  return network.Build(ops);
}

ModelRow::Make Perceptron(const std::vector<int>& hidden) {
  return [hidden](const SampleSpec& samples, Ops& ops) { return MakePerceptron(samples, hidden, ops); };
}

ModelRow::Make TwoHiddenLayers(const ModelSize& size) { return Perceptron({size.width, size.width}); }

ModelRow GptRow(const char* name, const char* summary, const ModelSize& size, double lr) {
  return {.name = name,
          .summary = summary,
          .default_lr = lr,
          .default_async_lr = lr,
          .make = Gpt(size, /*dropout=*/0),
          .size = size,
          .sized = [](const ModelSize& other) { return Gpt(other, /*dropout=*/0); },
          .with_dropout = Gpt,
          .optimizer = "adamw",
          .has_units = true};
}

ModelRow ResNetRow(const char* name, const char* summary, ModelRow::Make (*sized)(const ModelSize&)) {
  const ModelSize size{.width = 64};
  return {.name = name,
          .summary = summary,
          .default_lr = .05,
          .default_async_lr = .05,
          .make = sized(size),
          .size = size,
          .sized = sized,
          .has_units = true};
}

// A velocity would change all rows in every step, so the default is plain SGD.
ModelRow TableRow(const char* name, const char* summary, int width, double lr,
                  ModelRow::Make (*sized)(const ModelSize&)) {
  const ModelSize size{.width = width};
  return {.name = name,
          .summary = summary,
          .default_lr = lr,
          .default_async_lr = lr,
          .make = sized(size),
          .size = size,
          .sized = sized,
          .optimizer = "sgd"};
}

// The network of PyTorch's MNIST example, without dropout.
absl::StatusOr<std::unique_ptr<Model>> MakeCnn(const SampleSpec& samples, Ops& ops) {
  PSRING_ASSIGN_OR_RETURN(const ImageShape image, PicturesOf(samples, "cnn"));
  const ConvShape conv1{.height = image.height,
                        .width = image.width,
                        .in_channels = image.channels,
                        .out_channels = 32,
                        .kernel = 3,
                        .activation = Activation::kRelu};
  const ConvShape conv2{.height = conv1.out_height(),
                        .width = conv1.out_width(),
                        .in_channels = 32,
                        .out_channels = 64,
                        .kernel = 3,
                        .activation = Activation::kRelu};
  const PoolShape pool{.height = conv2.out_height(), .width = conv2.out_width(), .channels = 64};
  if (pool.height < 2 || pool.width < 2 || pool.height % 2 != 0 || pool.width % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the cnn needs images of even size, 6x6 at least; these are ", image.height, "x", image.width));
  }
  const ImageShape pooled{.height = pool.height / 2, .width = pool.width / 2, .channels = pool.channels};
  Network::Builder network(samples);
  ParameterLayout& layout = network.layout();
  int value =
      network.Add(std::make_unique<ConvLayer>("conv1", ConvConfig{conv1}, layout), {network.Input(0)});
  value = network.Add(std::make_unique<ConvLayer>("conv2", ConvConfig{conv2}, layout), {value});
  value = network.Add(std::make_unique<MaxPoolLayer>(pool), {value});
  const LinearConfig fc1{.inputs = static_cast<int>(pooled.count()),
                         .outputs = 128,
                         .activation = Activation::kRelu,
                         .image = pooled},
      fc2{.inputs = 128, .outputs = samples.classes};
  value = network.Add(std::make_unique<LinearLayer>("fc1", fc1, layout), {value});
  network.Add(std::make_unique<LinearLayer>("fc2", fc2, layout), {value});
  return network.Build(ops);
}

}  // namespace

const std::vector<ModelRow>& Models() {
  static const std::vector<ModelRow> models = {
      {.name = "mlp",
       .summary = "784-1024-1024-10 with ReLU",
       .default_lr = .05,
       .default_async_lr = .15,
       .make = Perceptron({1024, 1024}),
       .size = {.width = 1024},
       .sized = TwoHiddenLayers},
      {.name = "mlp-small",
       .summary = "784-300-100-10 with ReLU: small gradients, short steps",
       .default_lr = .05,
       .default_async_lr = .1,
       .make = Perceptron({300, 100}),  // LeNet-300-100 (LeCun et al. 1998)
       .size = {.width = 0},
       .sized = TwoHiddenLayers},
      {.name = "cnn",
       .summary = "two 3x3 convolutions (32, 64), 2x2 pooling, 9216-128-10",
       .default_lr = .1,
       .default_async_lr = .1,
       .make = MakeCnn},
      ResNetRow("resnet18", "18 layers with residual connections and BatchNorm, 3x3 stem as for CIFAR",
                ResNet18),
      ResNetRow("resnet50", "50 layers in bottlenecks with BatchNorm, 3x3 stem as for CIFAR", ResNet50),
      GptRow("gpt-nano", "GPT-2 with 4 layers, 4 heads, width 128, context 64",
             {.layers = 4, .width = 128, .heads = 4, .context = 64}, 1e-3),
      GptRow("gpt-mini", "GPT-2 with 6 layers, 6 heads, width 384, context 256",
             {.layers = 6, .width = 384, .heads = 6, .context = 256}, 1e-3),
      GptRow("gpt2", "GPT-2 with 12 layers, 12 heads, width 768, context 1024",
             {.layers = 12, .width = 768, .heads = 12, .context = 1024}, 6e-4),
      TableRow("dlrm-small", "DLRM: 8 tables of rows of width 64, their products, and two small MLPs", 64, 1,
               Dlrm),
      TableRow("skipgram", "word2vec's skip-grams with 5 negatives and vectors of width 128", 128, 10,
               SkipGram),
  };
  return models;
}

std::vector<ParameterRange> WithoutDecay(const ParameterLayout& layout) {
  std::vector<ParameterRange> ranges;
  for (const Tensor& tensor : layout.tensors()) {
    if (tensor.shape.size() > 1 || tensor.count == 0) continue;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == tensor.first) {
      ranges.back().count += tensor.space;
    } else {
      ranges.push_back({tensor.first, tensor.space});
    }
  }
  return ranges;
}

absl::StatusOr<const ModelRow*> FindModel(const std::string& name) {
  std::vector<std::string> names;
  for (const ModelRow& row : Models()) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  const std::string hint = WorkloadHint(name);
  return hint.empty() ? UnknownName("model", name, names) : absl::NotFoundError(hint);
}

}  // namespace psring
