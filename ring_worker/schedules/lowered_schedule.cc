#include "ring_worker/schedules/lowered_schedule.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

namespace psring {
namespace {

// Whether one of `receives`, which are in order and do not overlap, writes to the chunks.
bool Writes(const std::vector<LoweredReceive>& receives, int first_chunk, int chunk_count) {
  const auto at = std::partition_point(receives.begin(), receives.end(), [&](const LoweredReceive& receive) {
    return receive.first_chunk + receive.chunk_count <= first_chunk;
  });
  return at != receives.end() && at->first_chunk < first_chunk + chunk_count;
}

// Whether one of `transfers` reads or writes memory that one of `receives` writes.
template <typename Transfers>
bool Conflict(const Transfers& transfers, const std::vector<LoweredReceive>& receives) {
  return std::any_of(transfers.begin(), transfers.end(), [&](const auto& transfer) {
    return Writes(receives, transfer.first_chunk, transfer.chunk_count);
  });
}

bool DependsOn(const LoweredRound& later, const LoweredRound& earlier) {
  return Conflict(earlier.sends, later.receives) || Conflict(earlier.receives, later.receives) ||
         Conflict(later.sends, earlier.receives);
}

// Orders the sends to each peer by chunk, and takes the peers in turn, in the order of the schedule, which
// spreads the first sends over all peers.
std::vector<LoweredSend> InTurns(std::vector<LoweredSend> sends) {
  std::map<int, size_t> place;  // of a peer in the schedule's order
  for (const LoweredSend& send : sends) place.try_emplace(send.peer, place.size());
  std::stable_sort(sends.begin(), sends.end(),
                   [](const LoweredSend& a, const LoweredSend& b) { return a.first_chunk < b.first_chunk; });
  std::map<int, size_t> turns;                                // of a peer so far
  std::map<std::pair<size_t, size_t>, LoweredSend> in_order;  // by turn and place
  for (const LoweredSend& send : sends) in_order[{turns[send.peer]++, place[send.peer]}] = send;
  sends.clear();
  for (const auto& [at, send] : in_order) sends.push_back(send);
  return sends;
}

LoweredRound LowerRound(const std::vector<Transfer>& transfers, int rank, bool whole, bool keeps_input) {
  LoweredRound round;
  std::map<int, LoweredReceive> receives;  // by first chunk: receives that overlap name the same chunks
  for (const Transfer& t : transfers) {
    const int pieces = whole ? 1 : t.chunk_count, length = whole ? t.chunk_count : 1;
    for (int first = t.first_chunk; first < t.first_chunk + pieces; ++first) {
      if (t.kind == TransferKind::kSend) {
        round.sends.push_back({t.peer, first, length, false, false});
        continue;
      }
      const auto [at, is_first] = receives.try_emplace(first, LoweredReceive{first, length, {}, false});
      std::vector<int>& sources = at->second.sources;
      if (is_first && t.kind == TransferKind::kReceiveAdd && t.peer != rank) sources.push_back(rank);
      sources.push_back(t.peer);
    }
  }
  for (auto& [first, receive] : receives) round.receives.push_back(std::move(receive));
  // This order is the same on both sides, since two ranks send each other a range at most once per round.
  round.sends = InTurns(std::move(round.sends));
  for (LoweredSend& send : round.sends) {
    send.copy = !keeps_input && Writes(round.receives, send.first_chunk, send.chunk_count);
  }
  return round;
}

}  // namespace

int MaxRounds(const Schedule& schedule) {
  int rounds = 0;
  for (int rank = 0; rank < schedule.ranks(); ++rank) rounds = std::max(rounds, schedule.rounds(rank));
  return rounds;
}

LoweredSchedule LowerSchedule(const Schedule& schedule, int rank, int rounds, bool whole) {
  LoweredSchedule lowered;
  lowered.chunks = schedule.chunks();
  lowered.rounds.resize(static_cast<size_t>(rounds));
  lowered.after.assign(static_cast<size_t>(rounds), LoweredSchedule::kNoTransfers);
  lowered.written.assign(static_cast<size_t>(lowered.chunks), 0);
  std::vector<Transfer> transfers;
  for (int r = 0; r < schedule.rounds(rank); ++r) {
    schedule.Round(rank, r, transfers);
    if (transfers.empty()) continue;
    LoweredRound& round = lowered.rounds[r];
    round = LowerRound(transfers, rank, whole, schedule.keeps_input());
    lowered.last_round = r;
    int after = r - 1;
    while (after >= 0 && !DependsOn(round, lowered.rounds[after])) --after;
    lowered.after[r] = after;
    const auto is_fresh = [&](const auto& transfer) {
      return std::memchr(lowered.written.data() + transfer.first_chunk, 1, transfer.chunk_count) == nullptr;
    };
    for (LoweredSend& send : round.sends) send.fresh = is_fresh(send);
    for (LoweredReceive& receive : round.receives) receive.fresh = is_fresh(receive);
    for (const LoweredReceive& receive : round.receives) {
      std::fill_n(lowered.written.begin() + receive.first_chunk, receive.chunk_count, 1);
    }
  }
  return lowered;
}

void MarkReplies(LoweredSchedule& lowered, int rank) {
  struct Uses {
    std::vector<std::pair<int, LoweredSend*>> sends;  // since the last receive, with their rounds
    LoweredReceive* received = nullptr;
  };
  std::vector<Uses> chunks(static_cast<size_t>(lowered.chunks));
  std::map<const LoweredReceive*, std::set<int>> unanswered;  // sources
  // Whether all chunks of a transfer were last received together, and no others with them.
  const auto answers = [&](const auto& transfer, const LoweredReceive* received) {
    const auto first = chunks.begin() + transfer.first_chunk;
    return received != nullptr && received->first_chunk == transfer.first_chunk &&
           received->chunk_count == transfer.chunk_count &&
           std::all_of(first, first + transfer.chunk_count,
                       [&](const Uses& uses) { return uses.received == received; });
  };
  for (int r = 0; r <= lowered.last_round; ++r) {
    for (LoweredSend& send : lowered.rounds[r].sends) {
      LoweredReceive* const received = chunks[send.first_chunk].received;
      if (answers(send, received)) {
        std::set<int>& left = unanswered[received];
        received->replies = left.erase(send.peer) > 0 && left.empty();
      }
      for (int c = 0; c < send.chunk_count; ++c) chunks[send.first_chunk + c].sends.push_back({r, &send});
    }
    for (LoweredReceive& receive : lowered.rounds[r].receives) {
      const auto first = chunks.begin() + receive.first_chunk, end = first + receive.chunk_count;
      const bool one_each = std::all_of(first, end, [](const Uses& uses) { return uses.sends.size() == 1; });
      if (one_each && receive.sources.size() == 1 && receive.sources.front() != rank) {
        const auto [round, send] = first->sends.front();
        if (round < r && send->peer == receive.sources.front() && send->first_chunk == receive.first_chunk &&
            send->chunk_count == receive.chunk_count) {
          send->reply_round = r;
        }
      }
      std::fill(first, end, Uses{{}, &receive});
      std::set<int>& sources = unanswered[&receive];
      sources.insert(receive.sources.begin(), receive.sources.end());
      sources.erase(rank);
    }
  }
}

std::vector<int> PeersOf(const Schedule& schedule, int rank) {
  std::set<int> peers;
  std::vector<Transfer> transfers;
  for (int round = 0; round < schedule.rounds(rank); ++round) {
    schedule.Round(rank, round, transfers);
    for (const Transfer& transfer : transfers) peers.insert(transfer.peer);
  }
  peers.erase(rank);
  return {peers.begin(), peers.end()};
}

StartOrder::StartOrder(const std::vector<int>& after, int64_t slabs, int64_t depth)
    : after_(after),
      slabs_(slabs),
      depth_(depth),
      waves_(after.empty() ? 0 : slabs + (static_cast<int64_t>(after.size()) - 1) * depth) {
  SkipEmptyRounds();
}

void StartOrder::Advance() {
  --round_;
  SkipEmptyRounds();
}

void StartOrder::SkipEmptyRounds() {
  while (wave_ < waves_) {
    const int64_t first = std::max<int64_t>(0, (wave_ - slabs_ + depth_) / depth_);
    for (; round_ >= first; --round_) {
      if (after_[round_] != LoweredSchedule::kNoTransfers) return;
    }
    ++wave_;
    round_ = std::min(static_cast<int64_t>(after_.size()) - 1, wave_ / depth_);
  }
}

}  // namespace psring
