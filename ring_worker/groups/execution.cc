#include "ring_worker/groups/execution.h"

#include <algorithm>

#include "common/base/check.h"

namespace psring {

void Execution::CopyBytes(std::byte* to, const std::byte* from, size_t bytes) const {
  if (to != from && bytes > 0) device_.Copy(to, from, bytes);
}

// The first element of a chunk in the whole buffer.
size_t Execution::FirstOf(int chunk) const {
  return ChunkBounds(memory_.count, lowered_->chunks, chunk).first;
}

// Where the block for or from the rank `step` places after this one is. Blocks are equal.
size_t Execution::BlockAt(int step) const {
  const int block = (memory_.rank + step + memory_.size) % memory_.size;
  return FirstOf(block) * SizeOf(memory_.type);
}

// The address at which to read a chunk. `fresh`: nothing has been received into it yet.
const std::byte* Execution::Read(int chunk, bool fresh) const {
  if (memory_.collective == Collective::kAllToAll) return memory_.in + BlockAt(chunk);
  if (!fresh || whole_) return Write(chunk);
  if (memory_.collective == Collective::kAllGather) return memory_.in;
  return memory_.in + FirstOf(chunk) * SizeOf(memory_.type);
}

std::byte* Execution::Write(int chunk) const {
  if (memory_.collective == Collective::kAllToAll) return memory_.out + BlockAt(-chunk);
  const size_t at = FirstOf(chunk) * SizeOf(memory_.type);
  if (memory_.collective != Collective::kReduceScatter) return memory_.out + at;
  return chunk == memory_.rank && !whole_ ? memory_.out : memory_.scratch + at;
}

// Elements of a transfer in one slab, counted from the beginning of its first chunk.
ChunkRange Execution::Piece(int first_chunk, int chunk_count, uint32_t slab) const {
  const size_t length = ChunkBounds(memory_.count, lowered_->chunks, first_chunk, chunk_count).length;
  return whole_ ? ChunkRange{0, length}
                : ChunkBounds(length, static_cast<int>(slabs_), static_cast<int>(slab));
}

absl::Status Execution::Run(const LoweredSchedule& lowered, bool whole, uint32_t call,
                            const CallMemory& memory, const Pace& pace) {
  lowered_ = &lowered;
  whole_ = whole;
  call_ = call;
  memory_ = memory;
  pace_ = pace;
  PSRING_CHECK(in_flight_.empty());
  const size_t longest = (memory.count + lowered.chunks - 1) / lowered.chunks * SizeOf(memory.type);
  slabs_ = whole ? 1 : std::max<size_t>(1, (longest + pace.segment_bytes - 1) / pace.segment_bytes);
  if (rounds_ != nullptr) next_end_ = rounds_->size();
  if (whole) CopyWhole();

  for (StartOrder order(lowered.after, slabs_, pace.depth); !order.done(); order.Advance()) {
    for (size_t count = order.MustFinish(in_flight_); count > 0; --count) {
      PSRING_RETURN_IF_ERROR(FinishOldest());
    }
    Start(order.round(), static_cast<uint32_t>(order.slab()));
  }
  while (!in_flight_.empty()) PSRING_RETURN_IF_ERROR(FinishOldest());
  if (lowered.last_round < 0) {
    for (uint32_t slab = 0; slab < slabs_; ++slab) SlabDone(slab);
  }
  return absl::OkStatus();
}

// Copies a short buffer to the memory that the call works in.
void Execution::CopyWhole() const {
  const size_t bytes = memory_.count * SizeOf(memory_.type);
  switch (memory_.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      return CopyBytes(memory_.out, memory_.in, bytes);
    case Collective::kReduceScatter:
      return CopyBytes(memory_.scratch, memory_.in, bytes);
    case Collective::kAllGather:
      return CopyBytes(Write(memory_.rank), memory_.in, bytes / memory_.size);
    case Collective::kAllToAll:
      return CopyBytes(Write(0), Read(0, /*fresh=*/true), bytes / memory_.size);
  }
}

void Execution::Start(int round, uint32_t slab) {
  if (rounds_ != nullptr && slab == 0) rounds_->push_back({.round = round, .begin_ns = MonotonicNanos()});
  const Tag tag = {call_, static_cast<uint32_t>(round), slab};
  const size_t width = SizeOf(memory_.type);
  for (const LoweredSend& send : lowered_->rounds[round].sends) {
    const ChunkRange piece = Piece(send.first_chunk, send.chunk_count, slab);
    const std::byte* from = Read(send.first_chunk, send.fresh) + piece.first * width;
    SendTraits traits{.copy = send.copy};
    if (send.reply_round >= 0) {
      traits.reply = {.round = static_cast<uint32_t>(send.reply_round),
                      .to = Write(send.first_chunk) + piece.first * width};
    }
    transport_.Send(send.peer, tag, ConstSpan(from, piece.length, memory_.type), traits);
  }
  for (const LoweredReceive& receive : lowered_->rounds[round].receives) {
    const ChunkRange piece = Piece(receive.first_chunk, receive.chunk_count, slab);
    std::byte* const to = Write(receive.first_chunk) + piece.first * width;
    const std::byte* own = Read(receive.first_chunk, receive.fresh) + piece.first * width;
    transport_.Receive(tag, Span{to, piece.length, memory_.type}, memory_.op, own, receive.sources,
                       receive.replies);
  }
  in_flight_.PushBack() = {round, slab};
}

absl::Status Execution::FinishOldest() {
  const InFlight oldest = in_flight_.front();
  absl::Status status =
      transport_.Wait({call_, static_cast<uint32_t>(oldest.round), oldest.slab}, pace_.timeout);
  in_flight_.PopFront();
  if (!status.ok()) {
    while (!in_flight_.empty()) in_flight_.PopFront();
    return status;
  }
  if (rounds_ != nullptr && oldest.slab == slabs_ - 1) NoteEnd(oldest.round);
  if (oldest.round == lowered_->last_round) SlabDone(oldest.slab);
  return absl::OkStatus();
}

// For each slab, rounds begin and end in order.
void Execution::NoteEnd(int round) {
  PSRING_CHECK((*rounds_)[next_end_].round == round);
  (*rounds_)[next_end_++].end_ns = MonotonicNanos();
}

// On this rank no transfer reads or writes the slab any more.
void Execution::SlabDone(uint32_t slab) const {
  const size_t width = SizeOf(memory_.type);
  const bool scatter = memory_.collective == Collective::kReduceScatter;
  for (int chunk = 0; chunk < lowered_->chunks; ++chunk) {
    if (scatter && chunk != memory_.rank) continue;
    const ChunkRange piece = Piece(chunk, 1, slab);
    std::byte* const at = Write(chunk) + piece.first * width;
    if (!whole_ && lowered_->written[chunk] == 0) {
      CopyBytes(at, Read(chunk, /*fresh=*/true) + piece.first * width, piece.length * width);
    }
    const bool reduces = scatter || memory_.collective == Collective::kAllReduce;
    if (reduces && memory_.op == ReduceOp::kMean && memory_.size > 1) {
      device_.Scale({at, piece.length, memory_.type}, 1.0f / static_cast<float>(memory_.size));
    }
    if (scatter && whole_) CopyBytes(memory_.out, at, piece.length * width);
  }
}

}  // namespace psring
