// Which rank does not respond, when ranks have waited too long for each other.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/deadline.h"
#include "ring_worker/transports/mesh_transport.h"

namespace psring {
namespace {

// How long a rank whose peers respond waits for their errors, which may come through many ranks.
constexpr absl::Duration kForOthers = absl::Seconds(2);

// How long ranks may take to tell for whom they wait, given their timeout. Their deadlines pass at about the
// same time, and each responds when the first one has given up.
absl::Duration GraceOf(absl::Duration timeout) {
  return std::clamp(timeout / 2, absl::Milliseconds(200), absl::Seconds(2));
}

}  // namespace

MeshTransport::Awaited MeshTransport::WhomAwaited(uint64_t number) const {
  Awaited awaited;
  std::vector<std::string> whom;
  for (const int rank : used_) {
    const Peer& peer = *peers_[rank];
    bool reads = !peer.unread.empty() && peer.unread.front().transfers <= number;
    reads |= !peer.waiting.empty() && peer.waiting.front().transfers <= number;
    reads |= !peer.shares && !peer.stream->out().empty() && peer.stream->out().front().transfer <= number;
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
  std::vector<int> silent;
  for (const int rank : ranks) {
    if (WaitsFor(rank) < 0) silent.push_back(rank);
  }
  return silent;
}

absl::Status MeshTransport::GiveUpWaiting(uint64_t number, const Tag& tag, absl::Duration waited,
                                          absl::Duration timeout) {
  const Awaited awaited = WhomAwaited(number);
  std::string text = absl::StrCat("rank ", names_[rank_], " waited ",
                                  absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))), " for ",
                                  awaited.text, " (", ToString(tag), ")");
  if (!awaited.ranks.empty()) {
    MutexLock lock(mutex_);
    NotifyPeers({absl::StatusCode::kDeadlineExceeded, GaveUp(text), awaited.ranks.front()});
  }
  const auto waits_for_me = [this](int rank) { return WaitsFor(rank) == rank_; };
  const MonotonicTime begin = MonotonicNow();
  std::vector<int> silent = Silent(awaited.ranks);
  while (true) {
    // Peers that respond will say who is silent, unless they wait for this rank.
    const absl::Duration longest = silent.empty() ? GraceOf(timeout) + kForOthers : GraceOf(timeout);
    const MonotonicTime until = begin + longest;
    if (MonotonicNow() >= until || (silent.empty() && std::ranges::all_of(awaited.ranks, waits_for_me)))
      break;
    PSRING_RETURN_IF_ERROR(TakeConnected().status());
    PSRING_RETURN_IF_ERROR(Poll(until - MonotonicNow(), /*payload=*/false));
    if (aborted_.load(std::memory_order_acquire)) return failure();
    silent = Silent(awaited.ranks);
  }
  // If a peer gave up first, its error says how long it waited.
  int responses = 0, connected = 0;
  bool has_timeout_text = waited >= timeout;
  for (const int rank : used_) {
    if (peers_[rank]->control == nullptr) continue;
    ++connected;
    if (WaitsFor(rank) < 0) continue;
    ++responses;
    if (has_timeout_text || (!silent.empty() && WaitsFor(rank) != silent[0])) continue;
    text = peers_[rank]->control->waits_text();
    has_timeout_text = true;
  }
  if (responses == 0 && connected > 1) {
    absl::StrAppend(&text, "; no other rank responds to rank ", names_[rank_]);
  } else if (!silent.empty()) {
    const auto name = [this](std::string* to, int rank) { absl::StrAppend(to, "rank ", names_[rank]); };
    absl::StrAppend(&text, "; ", absl::StrJoin(silent, ", ", name),
                    silent.size() == 1 ? " does not respond" : " do not respond");
  }
  return absl::DeadlineExceededError(text);
}

}  // namespace psring
