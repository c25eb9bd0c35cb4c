#include "trainer/layers/layers.h"

namespace psring {
namespace {

class EmbeddingLayer : public Layer {
 public:
  EmbeddingLayer(const Tensor& table, const Tensor& positions, float deviation)
      : Layer({.outputs = positions.count, .parameters = {table.first, table.space + positions.space}}),
        table_(table),
        positions_(positions),
        deviation_(deviation) {}

  void Initialize(Random& random, float* own) const override {
    InitializeNormal(table_, deviation_, random, own);
    InitializeNormal(positions_, deviation_, random, own + (positions_.first - table_.first));
  }
  absl::Status Forward(const LayerPass& pass) const override {
    pass.ops.families().embedding->Forward(ShapeFor(pass.batch), IndicesOf(pass), Part(pass.weights, table_),
                                           Part(pass.weights, positions_), pass.y, pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass&) const override { return absl::OkStatus(); }
  absl::Status BackwardWeight(const LayerPass& pass) const override {
    pass.ops.families().embedding->Backward(ShapeFor(pass.batch), IndicesOf(pass), pass.dy,
                                            Part(pass.gradient, table_), Part(pass.gradient, positions_),
                                            pass.adds_gradient, pass.stream);
    return absl::OkStatus();
  }

 private:
  EmbeddingShape ShapeFor(int batch) const {
    const int context = positions_.shape[0];
    return {.count = batch * context, .rows = table_.shape[0], .width = table_.shape[1], .context = context};
  }
  static const int32_t* IndicesOf(const LayerPass& pass) {
    return static_cast<const int32_t*>(pass.x[0].data);
  }

  const Tensor table_, positions_;
  const float deviation_;
};

}  // namespace

std::unique_ptr<Layer> MakeEmbedding(const Tensor& table, const Tensor& positions, float deviation) {
  return std::make_unique<EmbeddingLayer>(table, positions, deviation);
}

}  // namespace psring
