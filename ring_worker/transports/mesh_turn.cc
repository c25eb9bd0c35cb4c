// Progress: sends frames for which there is space, and adds what has arrived.
#include "common/reduce/reduce.h"
#include "ring_worker/transports/mesh_transport.h"

namespace psring {

absl::StatusOr<bool> MeshTransport::Turn() {
  bool moved = false;
  // Sends first, since peers wait for them; both directions in turn, so that neither starves.
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = peers_[rank];
    if (peer.shared != nullptr) moved |= TurnShared(peer);
    for (FrameStream& stream : peer.streams) {
      if (stream.may_write()) PSRING_RETURN_IF_ERROR(Write(rank, stream));
      if (MayRead(rank, stream)) PSRING_RETURN_IF_ERROR(Read(rank, stream));
      moved |= stream.may_write() || MayRead(rank, stream);
    }
  }
  for (size_t i = 0; i < gathers_.size(); ++i) {
    Gather& gather = gathers_[i];
    if (gather.complete) continue;
    PSRING_ASSIGN_OR_RETURN(const bool took, TakeShared(gather, gathers_.popped() + i));
    moved |= took;
  }
  while (!gathers_.empty() && gathers_.front().complete) gathers_.PopFront();
  return moved;
}

// --- shared memory ---

bool MeshTransport::SendShared(Peer& peer, const FrameHeader& header, const std::byte* payload, bool copy,
                               uint64_t transfers) {
  bool taken = false;
  if (!peer.shared->TrySend(header, call_hash_, payload, copy, taken)) return false;
  CountSent(header.bytes);
  if (taken) {
    Finish(transfers);
  } else {
    peer.unread.PushBack() = {peer.shared->sent() - 1, transfers};
  }
  return true;
}

bool MeshTransport::TurnShared(Peer& peer) {
  bool moved = false;
  if (!peer.unread.empty()) {
    const uint64_t consumed = peer.shared->consumed();
    for (; !peer.unread.empty() && peer.unread.front().number < consumed; moved = true) {
      Finish(peer.unread.front().transfers);
      peer.unread.PopFront();
    }
  }
  for (; !peer.waiting.empty(); moved = true) {
    const WaitingFrame& frame = peer.waiting.front();
    if (!SendShared(peer, frame.header, frame.payload, frame.copy, frame.transfers)) break;
    peer.waiting.PopFront();
  }
  return moved;
}

absl::StatusOr<bool> MeshTransport::TakeShared(Gather& gather, uint64_t number) {
  const size_t first = gather.all_shared ? 0 : gather.next;
  const size_t last = gather.all_shared ? gather.sources.size() : gather.next + 1;
  for (size_t i = first; i < last; ++i) {
    const int source = gather.sources[i];
    if (source == rank_) continue;
    const Peer& peer = peers_[source];
    if (peer.shared == nullptr || peer.expected.front() != number || !peer.shared->HasFrame()) return false;
  }
  terms_.clear();
  if (!gather.all_shared) {
    if (const std::byte* base = BaseOf(gather, gather.next); base != nullptr) terms_.push_back(base);
  }
  for (size_t i = first; i < last; ++i) {
    const int source = gather.sources[i];
    if (source == rank_) {
      terms_.push_back(gather.own);
      continue;
    }
    PSRING_ASSIGN_OR_RETURN(const std::byte* payload,
                            peers_[source].shared->Payload(gather.expected, call_hash_));
    terms_.push_back(payload);
  }
  cpu::Reduce(gather.op, gather.to.type, gather.to.count, gather.to.data, terms_.data(),
              static_cast<int>(terms_.size()));
  for (size_t i = first; i < last; ++i) {
    const int source = gather.sources[i];
    if (source == rank_) continue;
    peers_[source].shared->Pop();
    peers_[source].expected.PopFront();
    CountReceived(gather.expected.bytes);
  }
  gather.next = last;
  Advance(gather);
  return true;
}

void MeshTransport::Advance(Gather& gather) {
  if (gather.next < gather.sources.size() && gather.sources[gather.next] == rank_) {
    const void* const terms[] = {gather.to.data, gather.own};
    cpu::Reduce(gather.op, gather.to.type, gather.to.count, gather.to.data, terms, 2);
    ++gather.next;
  }
  if (gather.next < gather.sources.size()) return;
  gather.complete = true;
  Finish(gather.transfers);
}

// --- TCP ---

absl::Status MeshTransport::Write(int rank, FrameStream& stream) {
  const absl::StatusOr<FrameStream::Moved> moved = stream.Write();
  if (!moved.ok()) return Explain(rank, moved.status());
  CountSent(moved->bytes);
  if (!moved->complete) return absl::OkStatus();
  Finish(stream.out().front().transfer);
  stream.out().PopFront();
  return absl::OkStatus();
}

absl::Status MeshTransport::Read(int rank, FrameStream& stream) {
  const absl::StatusOr<FrameStream::Moved> moved = stream.Read(window_);
  if (!moved.ok()) return Explain(rank, moved.status());
  CountReceived(moved->bytes);
  if (!moved->complete) return absl::OkStatus();
  Gather& gather = gathers_[stream.in().front().gather - gathers_.popped()];
  stream.in().PopFront();
  peers_[rank].expected.PopFront();
  ++gather.next;
  Advance(gather);
  return absl::OkStatus();
}

}  // namespace psring
