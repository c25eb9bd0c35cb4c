// Which rank does not respond, when ranks have waited too long for each other.
#include <poll.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ring_worker/transports/mesh_transport.h"

namespace psring {
namespace {

// How long ranks may take to tell for whom they wait, given their timeout. Their deadlines pass at about the
// same time, and each responds when the first one has given up.
absl::Duration GraceOf(absl::Duration timeout) {
  return std::clamp(timeout / 2, absl::Milliseconds(200), absl::Seconds(2));
}

}  // namespace

MeshTransport::Awaited MeshTransport::WhomAwaited(uint64_t number) const {
  Awaited awaited;
  std::vector<std::string> whom;
  for (int rank = 0; rank < size(); ++rank) {
    const Peer& peer = peers_[rank];
    bool reads = !peer.unread.empty() && peer.unread.front().transfers <= number;
    reads |= !peer.waiting.empty() && peer.waiting.front().transfers <= number;
    for (const FrameStream& stream : peer.streams) {
      reads |= !stream.out().empty() && stream.out().front().transfer <= number;
    }
    const bool sends =
        !peer.expected.empty() && gathers_[peer.expected.front() - gathers_.popped()].transfers <= number;
    if (sends && peer.shared != nullptr && peer.shared->HasFrame()) continue;
    if (!sends && !reads) continue;
    awaited.ranks.push_back(rank);
    whom.push_back(absl::StrCat("rank ", names_[rank], sends ? " to send" : " to receive"));
  }
  awaited.text = absl::StrJoin(whom, " and ");
  return awaited;
}

std::vector<int> MeshTransport::Silent(const std::vector<int>& ranks) const {
  std::vector<bool> seen(peers_.size());
  seen[static_cast<size_t>(rank_)] = true;
  std::vector<int> silent;
  for (int rank : ranks) {
    while (!seen[static_cast<size_t>(rank)]) {
      seen[static_cast<size_t>(rank)] = true;
      if (!HasResponded(rank)) {
        silent.push_back(rank);
        break;
      }
      rank = peers_[rank].control->waits_for();
    }
  }
  std::sort(silent.begin(), silent.end());
  return silent;
}

absl::Status MeshTransport::AwaitControl(absl::Time deadline) {
  std::vector<pollfd> controls;
  for (int rank = 0; rank < size(); ++rank) {
    const bool is_open = rank != rank_ && !peers_[rank].control->left();
    controls.push_back({is_open ? peers_[rank].control->fd() : -1, POLLIN, 0});
  }
  if (poll(controls.data(), controls.size(), PollTimeoutMs(deadline)) <= 0) return absl::OkStatus();
  for (int rank = 0; rank < size(); ++rank) {
    if (controls[rank].revents != 0) PSRING_RETURN_IF_ERROR(ReceiveControl(rank));
  }
  return absl::OkStatus();
}

absl::Status MeshTransport::GiveUpWaiting(uint64_t number, const Tag& tag, absl::Duration waited,
                                          absl::Duration timeout) {
  const Awaited awaited = WhomAwaited(number);
  std::string text = absl::StrCat("rank ", names_[rank_], " waited ",
                                  absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))), " for ",
                                  awaited.text, " (", ToString(tag), ")");
  if (!awaited.ranks.empty()) {
    MutexLock lock(failure_mutex_);
    NotifyPeers(absl::StatusCode::kDeadlineExceeded, absl::StrCat("rank ", names_[rank_], " gave up: ", text),
                awaited.ranks.front());
  }
  const absl::Time until = absl::Now() + GraceOf(timeout);
  std::vector<int> silent = Silent(awaited.ranks);
  for (; !silent.empty() && absl::Now() < until; silent = Silent(awaited.ranks)) {
    // Short, to notice an Abort.
    PSRING_RETURN_IF_ERROR(AwaitControl(std::min(until, absl::Now() + absl::Milliseconds(50))));
    if (aborted_.load(std::memory_order_acquire)) return failure();
  }
  // If a peer gave up first, its error says how long it waited.
  int responses = 0;
  bool is_told = waited >= timeout && (silent.empty() || std::ranges::count(awaited.ranks, silent[0]) > 0);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_ || !HasResponded(rank)) continue;
    ++responses;
    if (is_told || (!silent.empty() && peers_[rank].control->waits_for() != silent[0])) continue;
    text = peers_[rank].control->text();
    is_told = true;
  }
  if (responses == 0 && size() > 2) {
    absl::StrAppend(&text, "; no other rank responds to rank ", names_[rank_]);
  } else if (!silent.empty()) {
    const auto name = [this](std::string* to, int rank) { absl::StrAppend(to, "rank ", names_[rank]); };
    absl::StrAppend(&text, "; ", absl::StrJoin(silent, ", ", name),
                    silent.size() == 1 ? " does not respond" : " do not respond");
  }
  return absl::DeadlineExceededError(text);
}

}  // namespace psring
