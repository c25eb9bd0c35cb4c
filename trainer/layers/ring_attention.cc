// Attention of ranks that divide sequences, by a ring of keys and values (Liu et al. 2023). In step s of C a
// rank has those of the rank s before it, and computes its queries' block with them, while they travel on.
#include <cstring>

#include "common/base/check.h"
#include "common/kernels/reduce.h"
#include "trainer/layers/layers.h"

namespace psring {
namespace {

// to += from, of this type.
void AddTo(DType type, size_t count, std::byte* to, const std::byte* from) {
  const void* const both[] = {to, from};
  cpu::Reduce(ReduceOp::kSum, type, count, to, both, 2);
}

class RingAttentionLayer : public LayerWithoutParameters {
 public:
  RingAttentionLayer(int context, int heads, int head_size, const SequencePlace& place)
      : LayerWithoutParameters({.outputs = size_t{1} * place.OwnPositions(context) * heads * head_size,
                                .kept_bytes = sizeof(float) * place.OwnPositions(context) * heads,
                                .exchanged = place.ExchangeElements(context, heads * head_size),
                                .sends = SentFor(place, heads * head_size, context)}),
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
    const Span arriving = Piece(ContextParallelRow::RingPieces(place_.ranks) - 1, pass);
    Event sent[2], arrival_of_gradients;
    PackKeys(pass);
    for (int step = 0; step < place_.ranks; ++step) {
      const Span keys = Keys(step, pass);
      PSRING_ASSIGN_OR_RETURN(const Event arrival, SendKeysOn(step, pass));
      if (step == 0) {
        ops.Backward(shape, pass.x[0], pass.y, LogSumsOf(pass), pass.dy, pass.dx[0], pass.stream);
      } else {
        const size_t turn = (step - 1) % 2;
        const Span gradients = Piece(kGradients + turn, pass);
        axis.Await(sent[turn], pass.stream);
        pass.stream.Zero(gradients.data, gradients.bytes());  // those of keys without a query here
        if (const AttentionBlock block = BlockOf(step, pass); block.keys.count > 0) {
          ops.BackwardBlock(block, pass.x[0], keys, pass.y, LogSumsOf(pass), pass.dy, pass.dx[0], gradients,
                            pass.stream);
        }
        if (step > 1) {
          axis.Await(arrival_of_gradients, pass.stream);
          AddArrived(arriving, gradients, pass);
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
  // Keys and values pass all ranks but one, in backward with their gradients.
  static AxisTraffic SentFor(const SequencePlace& place, int width, int context) {
    const double keys = 2. * place.OwnPositions(context) * width * (place.ranks - 1);
    return {keys, 2 * keys};
  }
  // Pieces of SequenceAxis's memory (ContextParallelRow::RingPieces): keys and values, two of each, and their
  // gradients, two that are computed, of which two ranks need one, and those that arrive.
  static constexpr size_t kKeys = 0, kGradients = 2;

  size_t Rows(const LayerPass& pass) const { return size_t{1} * pass.batch * shape_.context; }
  Span Piece(size_t piece, const LayerPass& pass) const {
    return place_.axis->Piece(piece, 2 * Rows(pass) * shape_.width(), pass.y.type);
  }
  Span Keys(int step, const LayerPass& pass) const { return Piece(kKeys + step % 2, pass); }
  Span LogSumsOf(const LayerPass& pass) const {
    return {pass.kept, Rows(pass) * shape_.heads, DType::kFloat32};
  }

  // The keys and values of step 0, from [rows][3][width].
  void PackKeys(const LayerPass& pass) const {
    place_.axis->Await(place_.axis->all_sent(), pass.stream);
    const Span to = Keys(0, pass);
    pass.stream.Run([to, qkv = pass.x[0], width = shape_.width() * SizeOf(to.type), rows = Rows(pass)] {
      auto* const keys = static_cast<std::byte*>(to.data);
      const auto* const from = static_cast<const std::byte*>(qkv.data);
      for (size_t row = 0; row < rows; ++row)
        std::memcpy(keys + 2 * row * width, from + (3 * row + 1) * width, 2 * width);
      return absl::OkStatus();
    });
  }
  static void AddArrived(const Span& arriving, const Span& gradients, const LayerPass& pass) {
    pass.stream.Run([arriving, gradients] {
      AddTo(gradients.type, gradients.count, static_cast<std::byte*>(gradients.data),
            static_cast<const std::byte*>(arriving.data));
      return absl::OkStatus();
    });
  }
  void AddKeyGradients(const Span& from, const LayerPass& pass) const {
    const size_t count = 2 * size_t(shape_.width()), width = shape_.width() * SizeOf(from.type);
    pass.stream.Run([from, dqkv = pass.dx[0], count, width, rows = Rows(pass)] {
      auto* const to = static_cast<std::byte*>(dqkv.data);
      const auto* const gradients = static_cast<const std::byte*>(from.data);
      for (size_t row = 0; row < rows; ++row)
        AddTo(from.type, count, to + (3 * row + 1) * width, gradients + 2 * row * width);
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
