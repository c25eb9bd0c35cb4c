// The ranks that divide the sequences of a model (--cp). Each has all weights, or the same part of them, and
// some positions of every sample; only attention needs those of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/options/context_parallel.h"
#include "ring_worker/groups/channel.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/layers/tensor_axis.h"

namespace psring {

// The ranks of a sequence, in order, and the ring's channels: to the next rank, where this one sends, and
// from the previous one; null: there is no ring. Owned by the caller of RunWorker.
struct Sequence {
  ProcessGroup* group = nullptr;
  Channel *next = nullptr, *previous = nullptr;

  void Abort(const absl::Status& why) const;
  Traffic traffic() const;
};

// In memory of the CPU. Every rank makes the same calls in the same order, on its compute stream. One thread.
class SequenceAxis {
 public:
  explicit SequenceAxis(const Sequence& sequence) : sequence_(sequence) {}
  // Waits for what has begun.
  ~SequenceAxis();

  int rank() const { return sequence_.group->rank(); }
  int ranks() const { return sequence_.group->size(); }

  // Memory that all layers use in turn, as pieces of equal size. Before the first pass.
  absl::Status Reserve(size_t bytes, Device& device);
  Span Piece(size_t piece, size_t elements, DType type) const {
    return Span{memory_.data(), memory_.bytes() / SizeOf(type), type}.Slice(piece * elements, elements);
  }
  size_t reserved_bytes() const { return memory_.bytes(); }

  // The next rank gets `out` in its `in`, while `stream` computes what it gets. Begins after the present work
  // of the stream, and `in` is not written before earlier shifts have been sent. Their order is that of the
  // calls.
  struct Shift {
    Event sent, received;
  };
  absl::StatusOr<Shift> BeginShift(Span out, Span in, Stream& stream);
  // Makes the stream wait for it.
  void Await(const Event& event, Stream& stream);
  // ProcessGroup::AllToAll.
  absl::Status Exchange(ConstSpan in, Span out, Stream& stream);
  // Before the stream writes memory that was sent: all shifts so far.
  const Event& all_sent() const { return sent_; }

  // When shifts and exchanges were in progress, and when the compute stream waited for them, since the last
  // call. After the stream was synchronized.
  TensorAxis::Times Take();

 private:
  void FinishStamps() const;

  const Sequence& sequence_;
  Buffer memory_;
  Event sent_;  // the last shift
  // Begin and end; streams write them.
  std::deque<std::pair<int64_t, int64_t>> busy_, waits_, exchanges_;
};

// Where a rank is among those of a sequence. The axis of a single rank, or of a model that is not computed,
// is null.
struct SequencePlace {
  int rank = 0, ranks = 1;
  ContextParallel kind = ContextParallel::kRing;
  SequenceAxis* axis = nullptr;

  bool divides() const { return ranks > 1; }
  const ContextParallelRow& row() const { return ContextParallelOf(kind); }
  int ChunksPerRank() const { return divides() ? row().chunks_per_rank : 1; }
  // Of `context` positions, a multiple of ranks times ChunksPerRank().
  int OwnPositions(int context) const { return context / ranks; }
  int AttentionOfOwn() const { return row().AttentionOfOwn(ranks); }
  // The positions of rank `of`, in their order: one range for each chunk. kRing: chunks `of` and, from the
  // end, `of`, so that all ranks have equally many pairs of a query and an earlier key.
  std::vector<ReadyRange> PositionsOf(int of, int context) const;
  std::vector<ReadyRange> Positions(int context) const { return PositionsOf(rank, context); }
  // What attention of this width exchanges of a sample (LayerTraits::exchanged).
  size_t ExchangeElements(int context, int width) const {
    return divides() ? size_t{1} * row().ExchangedParts(ranks) * OwnPositions(context) * width : 0;
  }
};

}  // namespace psring
