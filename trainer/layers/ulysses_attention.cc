// Attention of ranks that divide sequences, by two all-to-alls (DeepSpeed-Ulysses, Jacobs et al. 2023): the
// first gives each rank all positions of its share of the heads, the second its positions of all heads.
#include <cstring>

#include "trainer/layers/layers.h"

namespace psring {
namespace {

class UlyssesAttentionLayer : public LayerWithoutParameters {
 public:
  UlyssesAttentionLayer(int context, int heads, int head_size, const SequencePlace& place)
      : LayerWithoutParameters(
            {.outputs = size_t{1} * place.OwnPositions(context) * heads * head_size,
             .kept_bytes = sizeof(float) * context * (heads / place.ranks) * (1 + size_t{4} * head_size),
             .exchanged = place.ExchangeElements(context, heads * head_size)}),
        shape_{.batch = 0, .context = context, .heads = heads / place.ranks, .head_size = head_size},
        place_(place) {}

  absl::Status Forward(const LayerPass& pass) const override {
    const Kept kept = KeptOf(pass);
    PSRING_RETURN_IF_ERROR(ToHeads(pass.x[0], /*matrices=*/3, kept.qkv, pass));
    pass.ops.families().attention->Forward(ForBatch(shape_, pass.batch), kept.qkv, kept.y, kept.log_sums,
                                           pass.stream);
    return ToPositions(kept.y, /*matrices=*/1, pass.y, pass);
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    const Kept kept = KeptOf(pass);
    // Two pieces are for the exchange.
    const Span dqkv = place_.axis->Piece(2, kept.qkv.count), dy = place_.axis->Piece(9, kept.y.count);
    PSRING_RETURN_IF_ERROR(ToHeads(pass.dy, /*matrices=*/1, dy, pass));
    pass.ops.families().attention->Backward(ForBatch(shape_, pass.batch), kept.qkv, kept.y, kept.log_sums, dy,
                                            dqkv, pass.stream);
    return ToPositions(dqkv, /*matrices=*/3, pass.dx[0], pass);
  }

 private:
  // Of all positions and this rank's heads.
  struct Kept {
    Span qkv, y, log_sums;
  };
  Kept KeptOf(const LayerPass& pass) const {
    const size_t rows = size_t{1} * pass.batch * shape_.context, count = rows * shape_.width();
    const Span all = {pass.kept, 4 * count + rows * shape_.heads, DType::kFloat32};
    return {.qkv = all.Slice(0, 3 * count),
            .y = all.Slice(3 * count, count),
            .log_sums = all.Slice(4 * count, rows * shape_.heads)};
  }

  // Moves a row of one rank's heads between [batch][own positions][matrices][heads], and
  // [rank][batch][own positions][matrices][own heads], in which blocks are exchanged; and those of a rank's
  // positions between that and [batch][positions][matrices][own heads]. `f(by_rank, by_other, count)`.
  template <typename F>
  void ForEachRow(int matrices, int batch, const F& f) const {
    const size_t ranks = place_.ranks, width = shape_.width();
    const size_t rows = size_t{1} * batch * (shape_.context / ranks) * matrices;
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t row = 0; row < rows; ++row)
        f((rank * rows + row) * width, (row * ranks + rank) * width, width);
    }
  }
  template <typename F>
  void ForEachSample(int matrices, int batch, const F& f) const {
    const size_t ranks = place_.ranks, samples = batch;
    const size_t part = shape_.context / ranks * matrices * shape_.width();
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t b = 0; b < samples; ++b) f((rank * samples + b) * part, (b * ranks + rank) * part, part);
    }
  }

  // This rank's positions of all heads, to all positions of its heads; both [...][matrices][heads].
  absl::Status ToHeads(ConstSpan from, int matrices, Span to, const LayerPass& pass) const {
    const Span out = place_.axis->Piece(0, to.count), in = place_.axis->Piece(1, to.count);
    pass.stream.Run([=, this, batch = pass.batch] {
      ForEachRow(matrices, batch, [&](size_t by_rank, size_t at, size_t count) {
        std::memcpy(out.floats() + by_rank, from.floats() + at, count * sizeof(float));
      });
      return absl::OkStatus();
    });
    PSRING_RETURN_IF_ERROR(place_.axis->Exchange(out, in, pass.stream));
    pass.stream.Run([=, this, batch = pass.batch] {
      ForEachSample(matrices, batch, [&](size_t by_rank, size_t at, size_t count) {
        std::memcpy(to.floats() + at, in.floats() + by_rank, count * sizeof(float));
      });
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }
  // The reverse.
  absl::Status ToPositions(ConstSpan from, int matrices, Span to, const LayerPass& pass) const {
    const Span out = place_.axis->Piece(0, to.count), in = place_.axis->Piece(1, to.count);
    pass.stream.Run([=, this, batch = pass.batch] {
      ForEachSample(matrices, batch, [&](size_t by_rank, size_t at, size_t count) {
        std::memcpy(out.floats() + by_rank, from.floats() + at, count * sizeof(float));
      });
      return absl::OkStatus();
    });
    PSRING_RETURN_IF_ERROR(place_.axis->Exchange(out, in, pass.stream));
    pass.stream.Run([=, this, batch = pass.batch] {
      ForEachRow(matrices, batch, [&](size_t by_rank, size_t at, size_t count) {
        std::memcpy(to.floats() + at, in.floats() + by_rank, count * sizeof(float));
      });
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  const AttentionShape shape_;  // of all positions and this rank's heads
  const SequencePlace place_;
};

}  // namespace

std::unique_ptr<Layer> MakeUlyssesAttention(int context, int heads, int head_size,
                                            const SequencePlace& place) {
  return std::make_unique<UlyssesAttentionLayer>(context, heads, head_size, place);
}

}  // namespace psring
