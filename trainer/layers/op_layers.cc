// Layers without parameters, each of which is one op.
#include <utility>

#include "trainer/layers/layers.h"

namespace psring {
namespace {

template <typename Shape>
class OpLayer : public LayerWithoutParameters {
 public:
  using Op = void (*)(const Shape& shape, const LayerPass& pass);  // `shape`: for the batch

  OpLayer(LayerTraits traits, const Shape& shape, Op forward, Op backward)
      : LayerWithoutParameters(std::move(traits)), shape_(shape), forward_(forward), backward_(backward) {}

  absl::Status Forward(const LayerPass& pass) const override {
    forward_(ForBatch(shape_, pass.batch), pass);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    if (pass.dx[0].data != nullptr) backward_(ForBatch(shape_, pass.batch), pass);
    return absl::OkStatus();
  }

 private:
  const Shape shape_;
  const Op forward_, backward_;
};

Span LogSumsOf(const AttentionShape& shape, const LayerPass& pass) {
  return {pass.kept, size_t{1} * shape.batch * shape.context * shape.heads, DType::kFloat32};
}

// Of what forward has chosen.
uint8_t* MaximaOf(const LayerPass& pass) { return reinterpret_cast<uint8_t*>(pass.kept); }

}  // namespace

std::unique_ptr<Layer> MakeAttention(int context, int heads, int head_size) {
  return std::make_unique<OpLayer<AttentionShape>>(
      LayerTraits{.outputs = size_t{1} * context * heads * head_size,
                  .kept_bytes = sizeof(float) * context * heads},
      AttentionShape{.batch = 0, .context = context, .heads = heads, .head_size = head_size},
      [](const AttentionShape& shape, const LayerPass& pass) {
        pass.ops.families().attention->Forward(shape, pass.x[0], pass.y, LogSumsOf(shape, pass), pass.stream);
      },
      [](const AttentionShape& shape, const LayerPass& pass) {
        pass.ops.families().attention->Backward(shape, pass.x[0], pass.y, LogSumsOf(shape, pass), pass.dy,
                                                pass.dx[0], pass.stream);
      });
}

std::unique_ptr<Layer> MakeDots(Dots kind, int others, int width) {
  const DotShape dots{kind, 0, others, width};
  return std::make_unique<OpLayer<DotShape>>(
      LayerTraits{.outputs = dots.outputs(), .inputs = {InputGradient::kWritten, InputGradient::kWritten}},
      dots,
      [](const DotShape& shape, const LayerPass& pass) {
        pass.ops.families().dots->Forward(shape, pass.x[0], pass.x[1], pass.y, pass.stream);
      },
      [](const DotShape& shape, const LayerPass& pass) {
        pass.ops.families().dots->Backward(shape, pass.x[0], pass.x[1], pass.dy, pass.dx[0], pass.dx[1],
                                           pass.stream);
      });
}

std::unique_ptr<Layer> MakeMaxPool(const PoolShape& pool) {
  const size_t maxima = size_t{1} * (pool.height / 2) * (pool.width / 2) * pool.channels;
  return std::make_unique<OpLayer<PoolShape>>(
      LayerTraits{.outputs = maxima, .kept_bytes = maxima}, pool,
      [](const PoolShape& shape, const LayerPass& pass) {
        pass.ops.families().pooling->MaxForward(shape, pass.x[0], pass.y, MaximaOf(pass), pass.stream);
      },
      [](const PoolShape& shape, const LayerPass& pass) {
        pass.ops.families().pooling->MaxBackward(shape, pass.dy, MaximaOf(pass), pass.dx[0], pass.stream);
      });
}

std::unique_ptr<Layer> MakeAveragePool(const PoolShape& pool) {
  return std::make_unique<OpLayer<PoolShape>>(
      LayerTraits{.outputs = static_cast<size_t>(pool.channels)}, pool,
      [](const PoolShape& shape, const LayerPass& pass) {
        pass.ops.families().pooling->AverageForward(shape, pass.x[0], pass.y, pass.stream);
      },
      [](const PoolShape& shape, const LayerPass& pass) {
        pass.ops.families().pooling->AverageBackward(shape, pass.dy, pass.dx[0], pass.stream);
      });
}

}  // namespace psring
