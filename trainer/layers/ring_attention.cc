// Attention of ranks that divide sequences, by a ring of keys and values (Liu et al. 2023). In step s of C a
// rank has those of the rank s before it, and computes its queries' block with them, while they travel on.
#include <cstring>

#include "common/base/check.h"
#include "trainer/layers/layers.h"

namespace psring {
namespace {

class RingAttentionLayer : public LayerWithoutParameters {
 public:
  RingAttentionLayer(int context, int heads, int head_size, const SequencePlace& place)
      : LayerWithoutParameters({.outputs = size_t{1} * place.OwnPositions(context) * heads * head_size,
                                .kept_bytes = sizeof(float) * place.OwnPositions(context) * heads,
                                .exchanged = place.ExchangeElements(context, heads * head_size)}),
        shape_{.batch = 0, .context = place.OwnPositions(context), .heads = heads, .head_size = head_size},
        place_(place),
        positions_(place.Positions(context)),
        whole_(context) {}

  absl::Status Forward(const LayerPass& pass) const override {
    AttentionOps& ops = *pass.ops.families().attention;
    const AttentionShape shape = ForBatch(shape_, pass.batch);
    PackKeys(pass);
    for (int step = 0; step < place_.ranks; ++step) {
      const Span keys = Keys(step, pass);
      PSRING_ASSIGN_OR_RETURN(const Event arrival, SendKeysOn(step, pass));
      if (step == 0) {
        ops.Forward(shape, pass.x[0], pass.y, LogSumsOf(pass), pass.stream);
      } else if (const AttentionBlock block = BlockOf(step, pass); block.keys.count > 0) {
        ops.ForwardBlock(block, pass.x[0], keys, pass.y, LogSumsOf(pass), pass.stream);
      }
      place_.axis->Await(arrival, pass.stream);
    }
    return absl::OkStatus();
  }

  // Gradients of keys and values follow these by one rank, so that they end where they belong: a rank adds
  // its block's to those that the rank before it has sent, and sends the sum.
  absl::Status BackwardInput(const LayerPass& pass) const override {
    AttentionOps& ops = *pass.ops.families().attention;
    SequenceAxis& axis = *place_.axis;
    const AttentionShape shape = ForBatch(shape_, pass.batch);
    const Span arriving = axis.Piece(place_.RingPieces() - 1, KeysCount(pass));
    Event sent[2], arrival_of_gradients;
    PackKeys(pass);
    for (int step = 0; step < place_.ranks; ++step) {
      const Span keys = Keys(step, pass);
      PSRING_ASSIGN_OR_RETURN(const Event arrival, SendKeysOn(step, pass));
      if (step == 0) {
        ops.Backward(shape, pass.x[0], pass.y, LogSumsOf(pass), pass.dy, pass.dx[0], pass.stream);
      } else {
        const size_t turn = (step - 1) % 2;
        const Span gradients = axis.Piece(kGradients + turn, KeysCount(pass));
        axis.Await(sent[turn], pass.stream);
        pass.stream.Zero(gradients.data, gradients.bytes());  // those of keys without a query here
        if (const AttentionBlock block = BlockOf(step, pass); block.keys.count > 0) {
          ops.BackwardBlock(block, pass.x[0], keys, pass.y, LogSumsOf(pass), pass.dy, pass.dx[0], gradients,
                            pass.stream);
        }
        if (step > 1) {
          axis.Await(arrival_of_gradients, pass.stream);
          pass.ops.Add(gradients, arriving, pass.stream);
        }
        PSRING_ASSIGN_OR_RETURN(const SequenceAxis::Shift shift,
                                axis.BeginShift(gradients, arriving, pass.stream));
        sent[turn] = shift.sent;
        arrival_of_gradients = shift.received;
      }
      axis.Await(arrival, pass.stream);
    }
    axis.Await(arrival_of_gradients, pass.stream);
    AddKeyGradients(arriving, pass);
    return absl::OkStatus();
  }

 private:
  // Pieces of SequenceAxis's memory (SequencePlace::RingPieces): keys and values, two of each, and their
  // gradients, two that are computed, of which two ranks need one, and those that arrive.
  static constexpr size_t kKeys = 0, kGradients = 2;

  size_t Rows(const LayerPass& pass) const { return size_t{1} * pass.batch * shape_.context; }
  size_t KeysCount(const LayerPass& pass) const { return 2 * Rows(pass) * shape_.width(); }
  Span Keys(int step, const LayerPass& pass) const {
    return place_.axis->Piece(kKeys + step % 2, KeysCount(pass));
  }
  Span LogSumsOf(const LayerPass& pass) const {
    return {pass.kept, Rows(pass) * shape_.heads, DType::kFloat32};
  }

  // The keys and values of step 0, from [rows][3][width].
  void PackKeys(const LayerPass& pass) const {
    place_.axis->Await(place_.axis->all_sent(), pass.stream);
    float* const to = Keys(0, pass).floats();
    const float* const qkv = pass.x[0].floats();
    pass.stream.Run([to, qkv, rows = Rows(pass), width = size_t(shape_.width())] {
      for (size_t row = 0; row < rows; ++row) {
        std::memcpy(to + 2 * row * width, qkv + (3 * row + 1) * width, 2 * width * sizeof(float));
      }
      return absl::OkStatus();
    });
  }
  void AddKeyGradients(const Span& from, const LayerPass& pass) const {
    const float* const gradients = from.floats();
    float* const dqkv = pass.dx[0].floats();
    pass.stream.Run([dqkv, gradients, rows = Rows(pass), width = size_t(shape_.width())] {
      for (size_t row = 0; row < rows; ++row) {
        float* const to = dqkv + (3 * row + 1) * width;
        for (size_t i = 0; i < 2 * width; ++i) to[i] += gradients[2 * row * width + i];
      }
      return absl::OkStatus();
    });
  }
  // Before step `step` is computed: begins the exchange that step + 1 needs; the last step needs none.
  absl::StatusOr<Event> SendKeysOn(int step, const LayerPass& pass) const {
    if (step + 1 == place_.ranks) return Event();
    PSRING_ASSIGN_OR_RETURN(const SequenceAxis::Shift shift,
                            place_.axis->BeginShift(Keys(step, pass), Keys(step + 1, pass), pass.stream));
    return shift.received;
  }

  // Of step 1 or later: of the keys of another rank those that come before queries of this one, and these
  // queries, which see all of them, because chunks of different ranks do not overlap. Without keys: none
  // does.
  AttentionBlock BlockOf(int step, const LayerPass& pass) const {
    const std::vector<ReadyRange> keys =
        place_.PositionsOf((place_.rank - step + place_.ranks) % place_.ranks, whole_);
    const int rows = shape_.context, chunk = static_cast<int>(keys[0].count);
    const int chunks = static_cast<int>(keys.size());
    AttentionBlock block{.batch = pass.batch,
                         .heads = shape_.heads,
                         .head_size = shape_.head_size,
                         .queries = {rows, 0, rows},
                         .keys = {rows, 0, 0},
                         .offset = rows};
    for (const ReadyRange& range : keys)
      block.keys.count += range.first < positions_.back().first ? chunk : 0;
    // The first chunk's queries see either the first chunk of keys or none.
    if (chunks > 1 && keys[0].first > positions_[0].first) block.queries = {rows, chunk, rows - chunk};
    return block;
  }

  const AttentionShape shape_;  // of this rank's positions
  const SequencePlace place_;
  const std::vector<ReadyRange> positions_;
  const int whole_;  // context
};

}  // namespace

std::unique_ptr<Layer> MakeRingAttention(int context, int heads, int head_size, const SequencePlace& place) {
  return std::make_unique<RingAttentionLayer>(context, heads, head_size, place);
}

}  // namespace psring
