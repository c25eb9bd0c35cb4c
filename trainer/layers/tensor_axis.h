// The ranks that divide the matrices of a model (--tp), as Megatron-LM does (Shoeybi et al. 2019): a layer
// whose outputs are divided is followed by one whose inputs are, so that a pair needs one sum in forward and
// one in backward.
//
// With --sequence_parallel (Korthikanti et al. 2022, section 4.2) the ranks divide the tokens of a batch
// between these pairs, which cuts each sum in two: a rank gets the sums of its own tokens, and before the
// next pair the ranks gather all. In backward, gathering becomes a sum of own tokens, and the reverse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// In memory of the CPU. Every rank makes the same calls in the same order, on its compute stream. Results are
// bit-identical on all ranks. Errors are those of the group's calls. One thread.
class TensorAxis {
 public:
  // Both outlive it. Between steps the group may have other users.
  TensorAxis(ProcessGroup& group, Device& device)
      : group_(group), device_(device), lane_(device.NewStream(StreamKind::kBackground, "tensor")) {}

  int rank() const { return group_.rank(); }
  int ranks() const { return group_.size(); }

  // Replaces values by their sums, or by the highest, over the ranks.
  absl::Status Sum(Span values, Stream& stream) { return Reduce(values, ReduceOp::kSum, stream); }
  absl::Status Highest(Span values, Stream& stream) { return Reduce(values, ReduceOp::kMax, stream); }
  // `all` consists of equal parts in the order of ranks: Gather fills it with each rank's `own`, and
  // SumOwn leaves this rank's part of its sum in `own`.
  absl::Status Gather(ConstSpan own, Span all, Stream& stream);
  absl::Status SumOwn(ConstSpan all, Span own, Stream& stream);
  // The same, while `stream` computes what it gets until Finish, which makes it wait for all that have begun.
  absl::Status BeginSum(Span values, Stream& stream);
  absl::Status BeginGather(ConstSpan own, Span all, Stream& stream);
  absl::Status BeginSumOwn(ConstSpan all, Span own, Stream& stream);
  void Finish(Stream& stream);

  // Memory for what layers gather or add up, which all use in turn: kPieces pieces, of together `bytes`, a
  // multiple of kPieces times 64; and what SumOwn of a piece needs in the group. Before the first pass.
  static constexpr size_t kPieces = 2;
  absl::Status Reserve(size_t bytes);
  Span Piece(size_t piece, size_t count, DType type);
  // Of Reserve(bytes), if the group needs memory for a sum; and what is allocated, with no work in progress.
  static size_t ReservedBytes(size_t bytes) { return bytes + bytes / kPieces; }
  size_t reserved_bytes() const;

  // When sums were in progress, and when the compute stream waited for them, since the last call. After the
  // stream was synchronized.
  struct Times {
    std::vector<std::pair<int64_t, int64_t>> busy, waits;

    void Add(const Times& other) {
      busy.insert(busy.end(), other.busy.begin(), other.busy.end());
      waits.insert(waits.end(), other.waits.begin(), other.waits.end());
    }
  };
  Times Take();

 private:
  absl::Status Reduce(Span values, ReduceOp op, Stream& stream);
  // `call(stream)`: of the group.
  template <typename Call>
  absl::Status Run(const Call& call, Stream& stream);
  template <typename Call>
  absl::Status Begin(const Call& call, Stream& stream);

  ProcessGroup& group_;
  Device& device_;
  Buffer pieces_;
  // Begin and end; streams write them.
  std::deque<std::pair<int64_t, int64_t>> busy_, waits_;
  Event done_;                          // of the last that has begun
  const std::unique_ptr<Stream> lane_;  // last: its work uses the above
};

// Where a rank is on an axis. The axis of a single rank, or of a model that is not computed, is null.
struct TensorPlace {
  int rank = 0, ranks = 1;
  TensorAxis* axis = nullptr;
  // Between the layers that divide matrices this rank has only its part of a batch's rows [batch][context],
  // such as tokens; the ranks divide the context, so that parts are equal for any batch. Values of its part
  // are [batch][context / ranks] for the network, and row i is row FirstRow + i of the batch.
  bool divides_rows = false;

  int OwnRows(int rows) const { return divides_rows ? rows / ranks : rows; }
  // Of a batch that has `own` rows, or elements, on each rank.
  size_t FirstRow(size_t own) const { return divides_rows ? static_cast<size_t>(rank) * own : 0; }

  // What a rank sends to gather `elements` of all ranks, or to add up as many and get its own sums, on
  // average over the ranks: half of what it sends for all sums.
  double SentByHalf(size_t elements) const { return (1 - 1.0 / ranks) * static_cast<double>(elements); }

  struct Share {
    int first, count;
  };
  // This rank's share of `count` things: of equal size if the ranks divide it, else they differ by one.
  Share ShareOf(int count) const {
    const auto begin = [&](int of) { return static_cast<int>(int64_t{count} * of / ranks); };
    return {begin(rank), begin(rank + 1) - begin(rank)};
  }
  // Its part of a tensor [outer][count][...].
  TensorPart PartOf(int outer, int count) const {
    const Share share = ShareOf(count);
    return {.outer = static_cast<size_t>(outer),
            .first = static_cast<size_t>(share.first),
            .count = static_cast<size_t>(share.count),
            .whole = static_cast<size_t>(count),
            .most = static_cast<size_t>((count - 1) / ranks + 1)};
  }
};

}  // namespace psring
