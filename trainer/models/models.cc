#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "trainer/layers/layers.h"
#include "trainer/models/model.h"
#include "trainer/models/network.h"
#include "trainer/models/networks.h"

namespace psring {
namespace {

// The shape of the pictures that model `name` reads. InvalidArgument: the samples are not pictures.
absl::StatusOr<ImageShape> PicturesOf(const SampleSpec& samples, const char* name) {
  if (samples.inputs.size() != 1 || samples.inputs[0].kind != TensorKind::kPicture) {
    return InvalidArgument("the model ", name, " reads pictures; choose other --data, or another --model");
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
    value = network.Add(MakeLinear(absl::StrCat("fc", number++), config, network.layout()), {value});
    inputs = outputs;
    image = {};
  };
  for (const int outputs : hidden) add(outputs, /*relu=*/true);
  add(samples.classes, /*relu=*/false);
  return network.Build(ops);
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
    return InvalidArgument("the cnn needs images of even size, 6x6 at least; these are ", image.height, "x",
                           image.width);
  }
  const ImageShape pooled{.height = pool.height / 2, .width = pool.width / 2, .channels = pool.channels};
  Network::Builder network(samples);
  ParameterLayout& layout = network.layout();
  int value = network.Add(MakeConv("conv1", {.shape = conv1}, layout), {network.Input(0)});
  value = network.Add(MakeConv("conv2", {.shape = conv2}, layout), {value});
  value = network.Add(MakeMaxPool(pool), {value});
  const LinearConfig fc1{.inputs = static_cast<int>(pooled.count()),
                         .outputs = 128,
                         .activation = Activation::kRelu,
                         .image = pooled},
      fc2{.inputs = 128, .outputs = samples.classes};
  value = network.Add(MakeLinear("fc1", fc1, layout), {value});
  network.Add(MakeLinear("fc2", fc2, layout), {value});
  return network.Build(ops);
}

// Two hidden layers of one width, or those of LeNet-300-100 (LeCun et al. 1998).
ModelRow::Make Perceptron(const ModelSize& size, double) {
  std::vector<int> hidden = {size.width, size.width};
  if (size.width == 0) hidden = {300, 100};
  return [hidden](const SampleSpec& samples, Ops& ops) { return MakePerceptron(samples, hidden, ops); };
}

// A network is one file with such a function.
const struct {
  const char* name;  // ModelRow::network
  ModelRow::Make (*make)(const ModelSize& size, double dropout);
  ModelRow::Make (*make_part)(const ModelSize& size, double dropout, const TensorPlace& place,
                              const SequencePlace& sequence) = nullptr;
} kNetworks[] = {
    {"mlp", Perceptron},    {"cnn", [](const ModelSize&, double) { return ModelRow::Make(MakeCnn); }},
    {"resnet18", ResNet18}, {"resnet50", ResNet50},
    {"gpt", Gpt, GptPart},  {"dlrm-small", Dlrm},
    {"skipgram", SkipGram},
};

}  // namespace

void SetMaker(double dropout, ModelRow& row) {
  for (const auto& [name, make, make_part] : kNetworks) {
    if (row.network == std::string_view(name)) row.make = make(row.size, dropout);
  }
  PSRING_CHECK(row.make != nullptr);
}

absl::StatusOr<ModelRow::Make> MakerOfPart(const ModelRow& row, double dropout, const TensorPlace& place,
                                           const SequencePlace& sequence) {
  for (const auto& [name, make, make_part] : kNetworks) {
    if (row.network == std::string_view(name) && make_part != nullptr) {
      return make_part(row.size, dropout, place, sequence);
    }
  }
  return InvalidArgument("the ", sequence.divides() ? "sequences" : "matrices", " of the model ", row.name,
                         " cannot be divided");
}

absl::StatusOr<ModelRow::Make> MakerOfPart(const ModelRow& row, double dropout, const TensorPlace& place) {
  return MakerOfPart(row, dropout, place, SequencePlace());
}

const ModelTable& Models() {
  static const auto& models = *[] {
    auto* rows = new ModelTable(ModelRows());
    for (ModelRow& row : *rows) SetMaker(/*dropout=*/0, row);
    return rows;
  }();
  return models;
}

std::vector<int> TensorsByReadiness(const Model& model) {
  std::vector<ReadyRange> ranges = model.CompleteAfterLayers();
  std::reverse(ranges.begin(), ranges.end());
  std::erase_if(ranges, [](const ReadyRange& range) { return range.count == 0; });
  return TensorsInOrder(model.parameters(), ranges);
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

}  // namespace psring
