#include "common/base/check.h"
#include "trainer/layers/layers.h"

namespace psring {
namespace {

class EmbeddingLayer : public Layer {
 public:
  EmbeddingLayer(const Tensor& table, const Tensor& positions, float deviation, const TensorPlace& place,
                 const SequencePlace& sequence)
      : Layer({.outputs = positions.count /
                          static_cast<size_t>(sequence.ranks * (place.divides_rows ? place.ranks : 1)),
               .parameters = {table.first, table.space + positions.space},
               .gathered = place.divides_rows ? positions.count : 0,
               .exchanged_once = sequence.divides() ? sizeof(float) * positions.count / sequence.ranks : 0,
               .sends = SentFor(positions.count / static_cast<size_t>(sequence.ranks), place)}),
        table_(table),
        positions_(positions),
        deviation_(deviation),
        place_(place),
        sequence_(sequence) {}

  void Initialize(Random& random, float* own) const override {
    InitializeNormal(table_, deviation_, random, own);
    InitializeNormal(positions_, deviation_, random, own + (positions_.first - table_.first));
  }
  absl::Status Forward(const LayerPass& pass) const override {
    EmbeddingShape shape = ShapeFor(pass.batch);
    ConstSpan positions = OwnPositions(pass);
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
    const Span all = Part(pass.gradient, positions_), own = sequence_.divides() ? Gathered(pass) : all;
    pass.ops.families().embedding->Backward(ShapeFor(pass.batch), IndicesOf(pass), dy,
                                            Part(pass.gradient, table_), own, pass.adds_gradient,
                                            pass.stream);
    if (!sequence_.divides()) return absl::OkStatus();
    pass.stream.Zero(all.data, all.bytes());
    ForEachRange(own, all, [&](const Span& of_own, const Span& of_all) {
      pass.stream.Copy(of_all.data, of_own.data, of_own.bytes());
    });
    return absl::OkStatus();
  }

 private:
  // `all`: elements of y on all ranks.
  static AxisTraffic SentFor(size_t all, const TensorPlace& place) {
    const double half = place.SentByHalf(all);
    return place.divides_rows ? AxisTraffic{half, half} : AxisTraffic{2 * half, 0};
  }
  EmbeddingShape ShapeFor(int batch) const {
    const int context = sequence_.OwnPositions(positions_.shape[0]);
    return {.count = batch * context,
            .rows = table_.shape[0],
            .width = table_.shape[1],
            .context = context,
            .first = static_cast<int>(table_.part.first),
            .all = static_cast<int>(table_.part.whole)};
  }
  // The rows of this rank's positions, one after the other.
  ConstSpan OwnPositions(const LayerPass& pass) const {
    const ConstSpan all = Part(pass.weights, positions_);
    if (!sequence_.divides()) return all;
    const Span own = Gathered(pass);
    ForEachRange(own, all, [&](const Span& of_own, const ConstSpan& of_all) {
      pass.stream.Copy(of_own.data, of_all.data, of_own.bytes());
    });
    return own;
  }
  // Memory for them, which attention has used.
  Span Gathered(const LayerPass& pass) const {
    sequence_.axis->Await(sequence_.axis->all_sent(), pass.stream);
    return sequence_.axis->Piece(0, positions_.count / static_cast<size_t>(sequence_.ranks), DType::kFloat32);
  }
  template <typename All, typename F>
  void ForEachRange(const Span& own, const All& all, const F& f) const {
    const size_t width = static_cast<size_t>(positions_.shape[1]);
    size_t at = 0;
    for (const ReadyRange& range : sequence_.Positions(positions_.shape[0])) {
      const size_t count = range.count * width;
      f(own.Slice(at, count), all.Slice(range.first * width, count));
      at += count;
    }
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
  const SequencePlace sequence_;
};

}  // namespace

std::unique_ptr<Layer> MakeEmbedding(const Tensor& table, const Tensor& positions, float deviation,
                                     const TensorPlace& place, const SequencePlace& sequence) {
  return std::make_unique<EmbeddingLayer>(table, positions, deviation, place, sequence);
}

}  // namespace psring
