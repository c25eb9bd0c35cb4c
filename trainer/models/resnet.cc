#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/errors.h"
#include "trainer/layers/layers.h"
#include "trainer/models/network.h"
#include "trainer/models/networks.h"

namespace psring {
namespace {

struct Architecture {
  absl::Span<const int> blocks;  // of each stage
  // Basic blocks have two 3x3 convolutions. Bottlenecks have a 3x3 convolution between two of 1x1, of which
  // the last has this many times the channels.
  bool bottleneck;
  int expansion;
};

constexpr int kBlocksOf18[] = {2, 2, 2, 2}, kBlocksOf50[] = {3, 4, 6, 3};

// A value of the network that is a feature map.
struct Map {
  int value;
  ImageShape shape;
};

class ResNetBuilder {
 public:
  explicit ResNetBuilder(Network::Builder& network) : network_(network) {}

  // A convolution without bias.
  Map Convolve(const std::string& name, const Map& x, int channels, int kernel, int stride) {
    const ConvShape shape{.height = x.shape.height,
                          .width = x.shape.width,
                          .in_channels = x.shape.channels,
                          .out_channels = channels,
                          .kernel = kernel,
                          .stride = stride,
                          .padding = kernel / 2};
    // He et al. 2015, by the number of outputs.
    const float deviation = std::sqrt(2.0f / static_cast<float>(kernel * kernel * channels));
    const ConvConfig config{.shape = shape, .bias = false, .deviation = deviation};
    return {network_.Add(MakeConv(name, config, network_.layout()), {x.value}),
            {.height = shape.out_height(), .width = shape.out_width(), .channels = channels}};
  }

  // `residual`: null, or added before ReLU.
  Map Normalize(const std::string& name, const Map& x, bool relu, const Map* residual = nullptr) {
    const BatchNormConfig config{.positions = x.shape.height * x.shape.width,
                                 .channels = x.shape.channels,
                                 .relu = relu,
                                 .residual = residual != nullptr};
    std::vector<int> inputs = {x.value};
    if (residual != nullptr) inputs.push_back(residual->value);
    return {network_.Add(MakeBatchNorm(name, config, network_.layout()), std::move(inputs)), x.shape};
  }

  // relu(x + normalized convolutions of x). Where the shape changes, x is convolved, too: first, so that in
  // backward the block's own convolutions are complete before it.
  Map AddBlock(const Architecture& net, const std::string& name, const Map& x, int channels, int stride) {
    const auto of = [&name](const char* part) { return absl::StrCat(name, ".", part); };
    const int outputs = channels * net.expansion;
    Map shortcut = x;
    if (stride != 1 || x.shape.channels != outputs) {
      shortcut = Convolve(of("downsample.0"), x, outputs, /*kernel=*/1, stride);
      shortcut = Normalize(of("downsample.1"), shortcut, /*relu=*/false);
    }
    Map y = Convolve(of("conv1"), x, channels, net.bottleneck ? 1 : 3, net.bottleneck ? 1 : stride);
    y = Normalize(of("bn1"), y, /*relu=*/true);
    y = Convolve(of("conv2"), y, channels, 3, net.bottleneck ? stride : 1);
    if (!net.bottleneck) return Normalize(of("bn2"), y, /*relu=*/true, &shortcut);
    y = Normalize(of("bn2"), y, /*relu=*/true);
    y = Convolve(of("conv3"), y, outputs, /*kernel=*/1, /*stride=*/1);
    return Normalize(of("bn3"), y, /*relu=*/true, &shortcut);
  }

 private:
  Network::Builder& network_;
};

absl::StatusOr<std::unique_ptr<Model>> MakeResNet(const Architecture& net, const ModelSize& size,
                                                  const SampleSpec& samples, Ops& ops) {
  if (samples.inputs.size() != 1 || samples.inputs[0].kind != TensorKind::kPicture) {
    return absl::InvalidArgumentError(
        "residual networks read pictures; choose other --data, or another --model");
  }
  // oneDNN 2.6's AVX2 convolutions write beyond pictures whose channels do not fill vectors.
  if (size.width % 16 != 0) {
    return InvalidArgument("--width ", size.width,
                           ": the channels of a residual network's first stage are a "
                           "multiple of 16, such as 16, 32 or 64");
  }
  if (ops.families().batch_norm == nullptr) {
    return absl::UnimplementedError("residual networks compute on CPUs only so far; use --device cpu");
  }
  Network::Builder network(samples);
  ResNetBuilder builder(network);
  const std::vector<int>& shape = samples.inputs[0].shape;
  Map x{network.Input(0), {.height = shape[0], .width = shape[1], .channels = shape[2]}};
  x = builder.Convolve("conv1", x, size.width, /*kernel=*/3, /*stride=*/1);
  x = builder.Normalize("bn1", x, /*relu=*/true);
  int channels = size.width, stage = 1;
  for (const int blocks : net.blocks) {
    for (int block = 0; block < blocks; ++block) {
      const int stride = stage > 1 && block == 0 ? 2 : 1;
      network.AddUnit(
          [&] { x = builder.AddBlock(net, absl::StrCat("layer", stage, ".", block), x, channels, stride); });
    }
    channels *= 2;
    ++stage;
  }
  const PoolShape pool{.height = x.shape.height, .width = x.shape.width, .channels = x.shape.channels};
  const int means = network.Add(MakeAveragePool(pool), {x.value});
  const LinearConfig fc{.inputs = x.shape.channels, .outputs = samples.classes};
  network.Add(MakeLinear("fc", fc, network.layout()), {means});
  return network.Build(ops);
}

ModelRow::Make ResNet(const Architecture& net, const ModelSize& size) {
  return [net, size](const SampleSpec& samples, Ops& ops) { return MakeResNet(net, size, samples, ops); };
}

}  // namespace

ModelRow::Make ResNet18(const ModelSize& size, double) {
  return ResNet({.blocks = kBlocksOf18, .bottleneck = false, .expansion = 1}, size);
}

ModelRow::Make ResNet50(const ModelSize& size, double) {
  return ResNet({.blocks = kBlocksOf50, .bottleneck = true, .expansion = 4}, size);
}

}  // namespace psring
