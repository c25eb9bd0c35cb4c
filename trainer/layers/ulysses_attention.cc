// Attention of ranks that divide sequences, by two all-to-alls (DeepSpeed-Ulysses, Jacobs et al. 2023): the
// first gives each rank all positions of its share of the heads, the second its positions of all heads. Both
// have as many elements, so that each is exchanged in place.
#include <cstring>

#include "trainer/layers/layers.h"

namespace psring {
namespace {

class UlyssesAttentionLayer : public LayerWithoutParameters {
 public:
  UlyssesAttentionLayer(int context, int heads, int head_size, const SequencePlace& place)
      : LayerWithoutParameters({.outputs = size_t{1} * place.OwnPositions(context) * heads * head_size,
                                .kept_bytes = sizeof(float) * context * (heads / place.ranks),
                                .kept_elements = size_t{1} * context * (heads / place.ranks) * head_size,
                                .exchanged = place.ExchangeElements(context, heads * head_size),
                                .replaces_x = true,
                                .sends = SentFor(place, heads * head_size, context)}),
        shape_{.batch = 0, .context = context, .heads = heads / place.ranks, .head_size = head_size},
        place_(place) {}

  absl::Status Forward(const LayerPass& pass) const override {
    const Kept kept = KeptOf(pass);
    PSRING_RETURN_IF_ERROR(ToHeads(pass.replaced, /*matrices=*/3, pass));
    pass.ops.families().attention->Forward(ForBatch(shape_, pass.batch), pass.replaced, kept.y, kept.log_sums,
                                           pass.stream);
    pass.stream.Copy(pass.y.data, kept.y.data, kept.y.bytes());
    return ToPositions(pass.y, /*matrices=*/1, pass);
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    const Kept kept = KeptOf(pass);
    PSRING_RETURN_IF_ERROR(ToHeads(pass.dy, /*matrices=*/1, pass));
    pass.ops.families().attention->Backward(ForBatch(shape_, pass.batch), pass.replaced, kept.y,
                                            kept.log_sums, pass.dy, pass.dx[0], pass.stream);
    return ToPositions(pass.dx[0], /*matrices=*/3, pass);
  }

 private:
  // Queries, keys, values and outputs, or their gradients.
  static AxisTraffic SentFor(const SequencePlace& place, int width, int context) {
    const double all = 4. * place.OwnPositions(context) * width * (1 - 1. / place.ranks);
    return {all, all};
  }
  // Of all positions and this rank's heads. The layer after this one needs y of all heads, too.
  struct Kept {
    Span y, log_sums;
  };
  Kept KeptOf(const LayerPass& pass) const {
    const size_t sums = size_t{1} * pass.batch * shape_.context * shape_.heads;
    return {.y = {pass.kept + sums * sizeof(float), sums * shape_.head_size, pass.y.type},
            .log_sums = {pass.kept, sums, DType::kFloat32}};
  }

  // Turns [batch][own positions][matrices][heads] into [batch][positions][matrices][own heads]. Blocks of
  // the exchange are [batch][own positions][matrices][own heads].
  absl::Status ToHeads(const Span& data, int matrices, const LayerPass& pass) const {
    const Span blocks = Blocks(data);
    Transpose(data, blocks, Rows(matrices, pass), Ranks(), pass);
    PSRING_RETURN_IF_ERROR(place_.axis->Exchange(blocks, data, pass.stream));
    TransposeInPlace(data, Ranks(), Samples(pass), pass);
    return absl::OkStatus();
  }
  // The reverse.
  absl::Status ToPositions(const Span& data, int matrices, const LayerPass& pass) const {
    const Span blocks = Blocks(data);
    TransposeInPlace(data, Samples(pass), Ranks(), pass);
    PSRING_RETURN_IF_ERROR(place_.axis->Exchange(data, blocks, pass.stream));
    Transpose(blocks, data, Ranks(), Rows(matrices, pass), pass);
    return absl::OkStatus();
  }

  size_t Ranks() const { return place_.ranks; }
  static size_t Samples(const LayerPass& pass) { return pass.batch; }
  // Of a block, each of this rank's share of the heads.
  size_t Rows(int matrices, const LayerPass& pass) const {
    return Samples(pass) * (shape_.context / Ranks()) * matrices;
  }
  Span Blocks(const Span& data) const { return place_.axis->Piece(0, data.count, data.type); }

  // `to` [inner][outer][...] = `from` [outer][inner][...], which do not overlap.
  static void Transpose(const Span& from, const Span& to, size_t outer, size_t inner, const LayerPass& pass) {
    pass.stream.Run([=] {
      const size_t bytes = from.bytes() / (outer * inner);
      const auto* const source = static_cast<const std::byte*>(from.data);
      auto* target = static_cast<std::byte*>(to.data);
      for (size_t i = 0; i < inner; ++i) {
        for (size_t o = 0; o < outer; ++o, target += bytes)
          std::memcpy(target, source + (o * inner + i) * bytes, bytes);
      }
      return absl::OkStatus();
    });
  }
  void TransposeInPlace(const Span& data, size_t outer, size_t inner, const LayerPass& pass) const {
    if (outer == 1 || inner == 1) return;
    const Span blocks = Blocks(data);
    Transpose(data, blocks, outer, inner, pass);
    pass.stream.Copy(data.data, blocks.data, data.bytes());
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
