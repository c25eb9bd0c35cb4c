#include "ring_worker/groups/program.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace psring {
namespace {

bool Overlap(int first_a, int count_a, int first_b, int count_b) {
  return first_a < first_b + count_b && first_b < first_a + count_a;
}

void AddReceive(const Transfer& t, int rank, RoundSteps& round) {
  const auto same = [&](const GatherStep& g) {
    return g.first_chunk == t.first_chunk && g.chunk_count == t.chunk_count;
  };
  auto gather = std::find_if(round.gathers.begin(), round.gathers.end(), same);
  if (gather == round.gathers.end()) {
    round.gathers.push_back({t.first_chunk, t.chunk_count, {}, false});
    gather = round.gathers.end() - 1;
    if (t.kind == TransferKind::kReceiveAdd && t.peer != rank) gather->sources.push_back(rank);
  }
  gather->sources.push_back(t.peer);
}

// Orders the sends to each peer by chunk, and takes the peers in turn, in the order of the schedule, which
// spreads the first sends over all peers.
std::vector<SendStep> InTurns(std::vector<SendStep> sends) {
  std::map<int, std::vector<SendStep>> by_peer;
  std::vector<int> peers;  // in the schedule's order
  for (const SendStep& send : sends) {
    if (!by_peer.contains(send.peer)) peers.push_back(send.peer);
    by_peer[send.peer].push_back(send);
  }
  for (auto& [peer, list] : by_peer) {
    std::stable_sort(list.begin(), list.end(),
                     [](const SendStep& a, const SendStep& b) { return a.first_chunk < b.first_chunk; });
  }
  const size_t count = sends.size();
  sends.clear();
  for (size_t turn = 0; sends.size() < count; ++turn) {
    for (const int peer : peers) {
      const std::vector<SendStep>& list = by_peer[peer];
      if (turn < list.size()) sends.push_back(list[turn]);
    }
  }
  return sends;
}

RoundSteps StepsOf(const std::vector<Transfer>& transfers, int rank, bool whole) {
  RoundSteps round;
  for (const Transfer& t : transfers) {
    const int pieces = whole ? 1 : t.chunk_count;
    for (int piece = 0; piece < pieces; ++piece) {
      Transfer part = t;
      if (!whole) part = {t.kind, t.peer, t.first_chunk + piece, 1};
      if (t.kind == TransferKind::kSend) {
        round.sends.push_back({part.peer, part.first_chunk, part.chunk_count, false, false});
      } else {
        AddReceive(part, rank, round);
      }
    }
  }
  // This order is the same on both sides, since two ranks send each other a range at most once per round.
  const auto by_chunk = [](const auto& a, const auto& b) { return a.first_chunk < b.first_chunk; };
  std::stable_sort(round.gathers.begin(), round.gathers.end(), by_chunk);
  round.sends = InTurns(std::move(round.sends));
  for (SendStep& send : round.sends) {
    send.copy = std::any_of(round.gathers.begin(), round.gathers.end(), [&](const GatherStep& g) {
      return Overlap(send.first_chunk, send.chunk_count, g.first_chunk, g.chunk_count);
    });
  }
  return round;
}

bool Conflict(const RoundSteps& earlier, const RoundSteps& later) {
  for (const GatherStep& write : later.gathers) {
    for (const SendStep& read : earlier.sends) {
      if (Overlap(write.first_chunk, write.chunk_count, read.first_chunk, read.chunk_count)) return true;
    }
    for (const GatherStep& other : earlier.gathers) {
      if (Overlap(write.first_chunk, write.chunk_count, other.first_chunk, other.chunk_count)) return true;
    }
  }
  for (const SendStep& read : later.sends) {
    for (const GatherStep& write : earlier.gathers) {
      if (Overlap(read.first_chunk, read.chunk_count, write.first_chunk, write.chunk_count)) return true;
    }
  }
  return false;
}

}  // namespace

Program MakeProgram(const Schedule& schedule, int rank, bool whole) {
  Program program;
  program.chunks = schedule.chunks();
  program.written.assign(program.chunks, false);
  int rounds = 0;
  for (int other = 0; other < schedule.ranks(); ++other) rounds = std::max(rounds, schedule.rounds(other));
  program.rounds.resize(rounds);
  std::vector<Transfer> transfers;
  for (int r = 0; r < schedule.rounds(rank); ++r) {
    schedule.Round(rank, r, transfers);
    RoundSteps& round = program.rounds[r];
    round = StepsOf(transfers, rank, whole);
    if (!round.empty()) program.last_round = r;
    for (int earlier = r - 1; earlier >= 0 && round.after < 0; --earlier) {
      if (Conflict(program.rounds[earlier], round)) round.after = earlier;
    }
    const auto fresh = [&](int first, int count) {
      return std::none_of(program.written.begin() + first, program.written.begin() + first + count,
                          [](bool written) { return written; });
    };
    for (SendStep& send : round.sends) send.fresh = fresh(send.first_chunk, send.chunk_count);
    for (GatherStep& gather : round.gathers) gather.fresh = fresh(gather.first_chunk, gather.chunk_count);
    for (const GatherStep& gather : round.gathers) {
      std::fill_n(program.written.begin() + gather.first_chunk, gather.chunk_count, true);
    }
  }
  return program;
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

}  // namespace psring
