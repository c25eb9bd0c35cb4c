// Progress: sends frames for which there is space, adds what has arrived, and waits. Errors name the peer
// that is missing, and why.
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/kernels/copy.h"
#include "common/kernels/reduce.h"
#include "common/measure/trace.h"
#include "ring_worker/transports/mesh_transport.h"

namespace psring {
namespace {

// How long to wait for the reason on the control connection after a data connection is lost.
constexpr absl::Duration kFinalMessageTimeout = absl::Seconds(1);

// A rank asleep on its futex does not notice control messages; it checks for them at this interval.
constexpr absl::Duration kMaxFutexWait = absl::Milliseconds(20);

constexpr int64_t kSpinNs = 100'000;  // longer than it takes to add a segment
constexpr int kPausesBetweenLooks = 16;

// Of a sum that is copied while it is in the L1 cache.
constexpr size_t kBlockBytes = 8 << 10;

}  // namespace

absl::Status MeshTransport::Progress(uint64_t number, absl::Duration timeout) {
  PSRING_RETURN_IF_ERROR(early_failure_);
  int64_t idle_since = 0, waited_since = 0;
  for (int looks = 0;; ++looks) {
    if (aborted_.load(std::memory_order_acquire)) return failure();
    PSRING_ASSIGN_OR_RETURN(const bool moved, Turn());
    if (Done(number)) return absl::OkStatus();
    if (moved) {
      idle_since = 0;
      continue;
    }
    if (has_connected_.load(std::memory_order_acquire)) {
      PSRING_RETURN_IF_ERROR(TakeConnected().status());
      continue;
    }
    if (looks % kPausesBetweenLooks != 0) {
      SpinPause();
      continue;
    }
    const int64_t now = MonotonicNanos();
    if (waited_since == 0) waited_since = now;
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < kSpinNs) {
      // Spinning is cheaper than sleeping; with fewer cores than ranks, it yields to other threads.
      if (oversubscribed_) sched_yield();
      if (tcp_peers_ > 0) PSRING_RETURN_IF_ERROR(Poll(absl::ZeroDuration()));
      continue;
    }
    const absl::Duration left = timeout - absl::Nanoseconds(now - waited_since);
    gives_up_ |= left <= absl::ZeroDuration();
    if (gives_up_) return absl::DeadlineExceededError("a rank does not respond");
    PSRING_RETURN_IF_ERROR(SleepUntilProgress(left, number));
    idle_since = 0;
  }
}

absl::StatusOr<bool> MeshTransport::Turn() {
  bool moved = false;
  // Sends before receives, because peers wait for them; both in each turn, so that neither starves.
  for (const int rank : used_) {
    Peer& peer = *peers_[rank];
    if (peer.shared != nullptr) moved |= TurnShared(peer);
    if (peer.shares) continue;
    FrameStream& stream = *peer.stream;
    if (stream.may_write()) PSRING_RETURN_IF_ERROR(Write(rank, stream));
    if (MayRead(rank, stream)) PSRING_RETURN_IF_ERROR(Read(rank, stream));
    moved |= stream.may_write() || MayRead(rank, stream);
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

bool MeshTransport::SendShared(Peer& peer, const FrameHeader& header, const std::byte* payload,
                               const SendTraits& traits, uint64_t transfers) {
  bool taken = false;
  if (!peer.shared->TrySend(header, call_hash_, payload, traits, taken)) return false;
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
    if (!SendShared(peer, frame.header, frame.payload, frame.traits, frame.transfers)) break;
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
    const Peer& peer = *peers_[source];
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
                            peers_[source]->shared->Payload(gather.expected, call_hash_));
    terms_.push_back(payload);
  }
  if (terms_.size() == 1 && terms_.front() == gather.to.data) {
    // The peer has written its reply there.
  } else if (terms_.size() == 1 && passes_caches()) {
    cpu::CopyPastCaches(gather.to.data, terms_.front(), gather.to.bytes());
  } else {
    Combine(gather);
  }
  for (size_t i = first; i < last; ++i) {
    const int source = gather.sources[i];
    if (source == rank_) continue;
    peers_[source]->shared->Pop();
    peers_[source]->expected.PopFront();
    CountReceived(gather.expected.bytes);
  }
  gather.next = last;
  Advance(gather);
  return true;
}

void MeshTransport::Combine(const Gather& gather) {
  const auto terms = static_cast<int>(terms_.size());
  places_.clear();
  for (size_t i = 0; gather.replies && gather.all_shared && i < gather.sources.size(); ++i) {
    if (gather.sources[i] == rank_) continue;
    std::byte* const place = peers_[gather.sources[i]]->shared->FillPlace(gather.expected);
    if (place != nullptr) places_.push_back(place);
  }
  if (places_.empty()) {
    cpu::Reduce(gather.op, gather.to.type, gather.to.count, gather.to.data, terms_.data(), terms);
    return;
  }
  // Every block is copied from the L1 cache. What is past the caches is not read before it is written.
  const bool past = passes_caches() && gather.own != gather.to.data;
  if (past) block_.resize(kBlockBytes);
  const size_t width = SizeOf(gather.to.type), bytes = gather.to.bytes();
  auto* const to = static_cast<std::byte*>(gather.to.data);
  for (size_t done = 0; done < bytes; done += kBlockBytes) {
    const size_t part = std::min(kBlockBytes, bytes - done);
    std::byte* const block = past ? block_.data() : to + done;
    cpu::Reduce(gather.op, gather.to.type, part / width, block, terms_.data(), terms);
    if (past) cpu::CopyPastCaches(to + done, block, part);
    for (std::byte* const place : places_) cpu::Copy(place + done, block, part, passes_caches());
    for (const void*& term : terms_) term = static_cast<const std::byte*>(term) + part;
  }
  for (const int source : gather.sources) {
    if (source != rank_) peers_[source]->shared->EndReply();
  }
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
  peers_[rank]->expected.PopFront();
  ++gather.next;
  Advance(gather);
  return absl::OkStatus();
}

absl::Status MeshTransport::SleepUntilProgress(absl::Duration left, uint64_t number) {
  bool sockets = shared_peers_ == 0;
  for (const int rank : used_) {
    const std::optional<FrameStream>& stream = peers_[rank]->stream;
    sockets |= stream.has_value() && (WantsRead(rank, *stream) || !stream->out().empty());
  }
  if (shared_peers_ > 0) {
    // From now on peers ring the bell; one more turn processes what arrived before.
    arena_->bell().store(static_cast<uint32_t>(sockets ? Sleep::kInPoll : Sleep::kOnFutex));
    absl::StatusOr<bool> moved = Turn();
    if (!moved.ok() || *moved || Done(number) || has_connected_.load(std::memory_order_acquire) ||
        aborted_.load(std::memory_order_acquire)) {
      arena_->bell().store(static_cast<uint32_t>(Sleep::kAwake));
      return moved.status();
    }
  }
  absl::Status status;
  if (sockets) {
    status = Poll(left);
  } else {
    FutexWait(arena_->bell(), static_cast<uint32_t>(Sleep::kOnFutex), std::min(left, kMaxFutexWait));
    // Not woken by the bell: check the sockets.
    if (arena_->bell().load() != static_cast<uint32_t>(Sleep::kAwake) || ++futex_waits_ % 64 == 0) {
      status = Poll(absl::ZeroDuration());
    }
  }
  if (arena_) arena_->bell().store(static_cast<uint32_t>(Sleep::kAwake));
  if (status.ok() && arena_) status = CheckDepartures();
  return status;
}

absl::Status MeshTransport::Poll(absl::Duration longest, bool payload) {
  polled_.assign(1, {wake_.get(), POLLIN, 0});
  for (const int rank : used_) {
    const Peer& peer = *peers_[rank];
    // poll() ignores a negative descriptor.
    polled_.push_back({peer.control == nullptr || peer.control->left() ? -1 : peer.control->fd(), POLLIN, 0});
    if (peer.shares) continue;
    const FrameStream& stream = *peer.stream;
    const short events = (WantsRead(rank, stream) ? POLLIN : 0) | (stream.out().empty() ? 0 : POLLOUT);
    polled_.push_back({events == 0 || !payload ? -1 : stream.fd(), events, 0});
  }
  const int ready = poll(polled_.data(), polled_.size(), PollTimeoutMs(MonotonicNow() + longest));
  if (ready < 0 && errno != EINTR) return SystemError("cannot wait for peers");
  if (ready <= 0) return absl::OkStatus();
  if (polled_[0].revents != 0 && !aborted_.load(std::memory_order_acquire)) {
    ReadRings(wake_.get());
  }
  size_t at = 1;
  for (const int rank : used_) {
    Peer& peer = *peers_[rank];
    if (polled_[at++].revents != 0) PSRING_RETURN_IF_ERROR(ReceiveControl(rank));
    if (peer.shares) continue;
    const short events = polled_[at++].revents;
    const short broken = POLLHUP | POLLERR | POLLNVAL;
    peer.stream->SetReady((events & (POLLIN | broken)) != 0, (events & (POLLOUT | broken)) != 0);
  }
  return absl::OkStatus();
}

absl::Status MeshTransport::ReceiveControl(int rank) {
  ControlConnection& control = *peers_[rank]->control;
  absl::Status received = control.Receive();
  if (control.waits_for() >= size()) {
    return DataLoss("rank ", names_[rank], " waits for rank ", control.waits_for(), ", which does not exist");
  }
  gives_up_ |= control.waits_for() >= 0;
  if (control.gave_up()) {
    MutexLock lock(mutex_);
    relayed_ = true;
  }
  return received;
}

absl::Status MeshTransport::CheckDepartures() {
  for (const int rank : used_) {
    const Peer& peer = *peers_[rank];
    if (peer.shared == nullptr || !peer.control->left()) continue;
    const bool needs_frame = !peer.expected.empty() && !peer.shared->HasFrame();
    const bool needs_reading = !peer.waiting.empty() || (!peer.unread.empty() && peer.unread.front().number >=
                                                                                     peer.shared->consumed());
    if (needs_frame || needs_reading) return HasLeft(rank);
  }
  return absl::OkStatus();
}

absl::Status MeshTransport::HasLeft(int rank) const {
  const Peer& peer = *peers_[rank];
  return Unavailable("rank ", names_[rank], " has left; rank ", names_[rank_], " still needs it for ",
                     peer.expected.empty()
                         ? ToString(header_.call)
                         : ToString(gathers_[peer.expected.front() - gathers_.popped()].expected));
}

absl::Status MeshTransport::Explain(int rank, const absl::Status& symptom) {
  if (!absl::IsUnavailable(symptom)) return symptom;
  ControlConnection& control = *peers_[rank]->control;
  const MonotonicTime deadline = MonotonicNow() + kFinalMessageTimeout;
  while (!control.left() && MonotonicNow() < deadline) {
    pollfd waiting = {control.fd(), POLLIN, 0};
    if (poll(&waiting, 1, PollTimeoutMs(deadline)) > 0) PSRING_RETURN_IF_ERROR(ReceiveControl(rank));
  }
  if (control.left()) return HasLeft(rank);
  return Unavailable("rank ", names_[rank], " is lost: ", symptom.message());
}

}  // namespace psring
