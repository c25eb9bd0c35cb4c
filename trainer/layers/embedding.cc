#include "common/base/check.h"
#include "trainer/layers/layers.h"

namespace psring {
namespace {

class EmbeddingLayer : public Layer {
 public:
  EmbeddingLayer(const Tensor& table, const Tensor& positions, float deviation, const TensorPlace& place)
      : Layer({.outputs = positions.count / static_cast<size_t>(place.divides_rows ? place.ranks : 1),
               .parameters = {table.first, table.space + positions.space},
               .gathered = place.divides_rows ? positions.count : 0}),
        table_(table),
        positions_(positions),
        deviation_(deviation),
        place_(place) {}

  void Initialize(Random& random, float* own) const override {
    InitializeNormal(table_, deviation_, random, own);
    InitializeNormal(positions_, deviation_, random, own + (positions_.first - table_.first));
  }
  absl::Status Forward(const LayerPass& pass) const override {
    EmbeddingShape shape = ShapeFor(pass.batch);
    ConstSpan positions = Part(pass.weights, positions_);
    if (place_.rank > 0) {  // they are in the sum once
      shape.context = 0;
      positions = {};
    }
    const Span y = place_.divides_rows ? All(pass.y) : pass.y;
    pass.ops.families().embedding->Forward(shape, IndicesOf(pass), Part(pass.weights, table_), positions, y,
                                           pass.stream);
    if (place_.divides_rows) return place_.axis->SumOwn(y, pass.y, pass.stream);
    return place_.ranks > 1 ? place_.axis->Sum(pass.y, pass.stream) : absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass&) const override { return absl::OkStatus(); }
  absl::Status BackwardWeight(const LayerPass& pass) const override {
    const Span dy = place_.divides_rows ? All(pass.dy) : pass.dy;
    if (place_.divides_rows) PSRING_RETURN_IF_ERROR(place_.axis->Gather(pass.dy, dy, pass.stream));
    pass.ops.families().embedding->Backward(ShapeFor(pass.batch), IndicesOf(pass), dy,
                                            Part(pass.gradient, table_), Part(pass.gradient, positions_),
                                            pass.adds_gradient, pass.stream);
    return absl::OkStatus();
  }

 private:
  EmbeddingShape ShapeFor(int batch) const {
    const int context = positions_.shape[0];
    return {.count = batch * context,
            .rows = table_.shape[0],
            .width = table_.shape[1],
            .context = context,
            .first = static_cast<int>(table_.part.first),
            .all = static_cast<int>(table_.part.whole)};
  }
  // The memory of all ranks' rows of a value.
  Span All(const Span& own) const {
    return place_.axis->Piece(0, own.count * static_cast<size_t>(place_.ranks), own.type);
  }
  static const int32_t* IndicesOf(const LayerPass& pass) {
    return static_cast<const int32_t*>(pass.x[0].data);
  }

  const Tensor table_, positions_;
  const float deviation_;
  const TensorPlace place_;
};

}  // namespace

std::unique_ptr<Layer> MakeEmbedding(const Tensor& table, const Tensor& positions, float deviation,
                                     const TensorPlace& place) {
  return std::make_unique<EmbeddingLayer>(table, positions, deviation, place);
}

}  // namespace psring
