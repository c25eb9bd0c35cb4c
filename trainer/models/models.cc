
#include "absl/strings/str_cat.h"
#include "trainer/data/names.h"
#include "trainer/layers/conv.h"
#include "trainer/layers/linear.h"
#include "trainer/layers/max_pool.h"
#include "trainer/models/model.h"
#include "trainer/models/sequence.h"

namespace psring {
namespace {

using Layers = std::vector<std::unique_ptr<Layer>>;

// Fully connected layers of these widths, ReLU between them.
absl::StatusOr<std::unique_ptr<Model>> MakePerceptron(const Dataset& data, const std::vector<int>& hidden,
                                                      int max_batch, Device& device, Ops& ops) {
  ParameterLayout layout;
  Layers layers;
  int inputs = static_cast<int>(data.image_size());
  ImageShape image{.height = data.height, .width = data.width, .channels = data.channels};
  for (const int outputs : hidden) {
    layers.push_back(std::make_unique<LinearLayer>(absl::StrCat("fc", layers.size() + 1), inputs, outputs,
                                                   /*relu=*/true, layout, image));
    inputs = outputs;
    image = {};
  }
  layers.push_back(std::make_unique<LinearLayer>(absl::StrCat("fc", layers.size() + 1), inputs, data.classes,
                                                 /*relu=*/false, layout));
  return Sequence::Create(std::move(layout), std::move(layers), data.image_size(), max_batch, device, ops);
}

ModelRow::Make Perceptron(const std::vector<int>& hidden) {
  return [hidden](const Dataset& data, int max_batch, Device& device, Ops& ops) {
    return MakePerceptron(data, hidden, max_batch, device, ops);
  };
}

ModelRow::Make TwoHiddenLayers(int width) { return Perceptron({width, width}); }

// The network of PyTorch's MNIST example, without dropout.
absl::StatusOr<std::unique_ptr<Model>> MakeCnn(const Dataset& data, int max_batch, Device& device, Ops& ops) {
  const ConvShape conv1{.height = data.height,
                        .width = data.width,
                        .in_channels = data.channels,
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
        "the cnn needs images of even size, 6x6 at least; these are ", data.height, "x", data.width));
  }
  ParameterLayout layout;
  Layers layers;
  layers.push_back(std::make_unique<ConvLayer>("conv1", conv1, layout));
  layers.push_back(std::make_unique<ConvLayer>("conv2", conv2, layout));
  layers.push_back(std::make_unique<MaxPoolLayer>(pool));
  const int features = static_cast<int>(layers.back()->outputs());
  layers.push_back(std::make_unique<LinearLayer>(
      "fc1", features, 128, /*relu=*/true, layout,
      ImageShape{.height = pool.height / 2, .width = pool.width / 2, .channels = pool.channels}));
  layers.push_back(std::make_unique<LinearLayer>("fc2", 128, data.classes, /*relu=*/false, layout));
  return Sequence::Create(std::move(layout), std::move(layers), data.image_size(), max_batch, device, ops);
}

}  // namespace

const std::vector<ModelRow>& Models() {
  static const std::vector<ModelRow> models = {
      {.name = "mlp",
       .summary = "784-1024-1024-10 with ReLU",
       .default_lr = .05,
       .default_async_lr = .15,
       .make = Perceptron({1024, 1024}),
       .widened = TwoHiddenLayers},
      {.name = "mlp-small",
       .summary = "784-300-100-10 with ReLU: small gradients, short steps",
       .default_lr = .05,
       .default_async_lr = .1,
       .make = Perceptron({300, 100}),  // LeNet-300-100 (LeCun et al. 1998)
       .widened = TwoHiddenLayers},
      {.name = "cnn",
       .summary = "two 3x3 convolutions (32, 64), 2x2 pooling, 9216-128-10",
       .default_lr = .1,
       .default_async_lr = .1,
       .make = MakeCnn},
  };
  return models;
}

absl::StatusOr<const ModelRow*> FindModel(const std::string& name) {
  std::vector<std::string> names;
  for (const ModelRow& row : Models()) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  return UnknownName("model", name, names);
}

}  // namespace psring
