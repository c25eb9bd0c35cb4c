#include "trainer/layers/embedding.h"

namespace psring {
namespace {

// Of one sample.
EmbeddingShape ShapeOf(const Tensor& table, const Tensor& positions) {
  return {.count = positions.shape[0],
          .rows = table.shape[0],
          .width = table.shape[1],
          .context = positions.shape[0]};
}

const int32_t* IndicesOf(const LayerPass& pass) { return static_cast<const int32_t*>(pass.x[0].data); }

}  // namespace

std::unique_ptr<EmbeddingLayer> EmbeddingLayer::In(ParameterLayout& layout, const EmbeddingConfig& config) {
  const Tensor table = layout.tensors()[layout.Add(config.table, {config.rows, config.width})];
  const Tensor positions = layout.tensors()[layout.Add(config.positions, {config.context, config.width})];
  return std::unique_ptr<EmbeddingLayer>(new EmbeddingLayer(table, positions, config.deviation));
}

EmbeddingLayer::EmbeddingLayer(const Tensor& table, const Tensor& positions, float deviation)
    : Layer({.outputs = positions.count, .parameters = {table.first, table.space + positions.space}}),
      table_(table),
      positions_(positions),
      deviation_(deviation) {}

void EmbeddingLayer::Initialize(Random& random, std::vector<float>& weights) const {
  InitializeNormal(table_, deviation_, random, weights);
  InitializeNormal(positions_, deviation_, random, weights);
}

absl::Status EmbeddingLayer::Forward(const LayerPass& pass) const {
  EmbeddingShape shape = ShapeOf(table_, positions_);
  shape.count *= pass.batch;
  pass.ops.families().embedding->Forward(shape, IndicesOf(pass), Part(pass.weights, table_),
                                         Part(pass.weights, positions_), pass.y, pass.stream);
  return absl::OkStatus();
}

absl::Status EmbeddingLayer::BackwardWeight(const LayerPass& pass) const {
  EmbeddingShape shape = ShapeOf(table_, positions_);
  shape.count *= pass.batch;
  pass.ops.families().embedding->Backward(shape, IndicesOf(pass), pass.dy, Part(pass.gradient, table_),
                                          Part(pass.gradient, positions_), pass.adds_gradient, pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
