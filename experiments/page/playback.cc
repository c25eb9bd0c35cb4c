#include "experiments/page/playback.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "trainer/programs/lower_program.h"

namespace psring {

Playback::Playback(const Schedule& schedule, Collective collective, int root)
    : schedule_(schedule), collective_(collective), root_(root) {
  const int ranks = schedule.ranks();
  PSRING_CHECK(ranks <= kMaxPlayed);
  for (int rank = 0; rank < ranks; ++rank) {
    rounds_ = std::max(rounds_, schedule.rounds(rank));
    auto& chunks = holdings_.emplace_back(schedule.chunks(), 0);
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
      const bool has = collective == Collective::kAllGather   ? chunk == rank
                       : collective == Collective::kBroadcast ? rank == root
                                                              : true;
      if (has) chunks[chunk] = uint64_t{1} << rank;
    }
  }
  traffic_.sent.assign(ranks, 0);
  traffic_.received.assign(ranks, 0);
}

std::vector<Hop> Playback::Step() {
  PSRING_CHECK(!done());
  const auto before = holdings_;
  std::vector<Hop> hops;
  std::vector<Transfer> transfers;
  int64_t busiest = 0, most_added = 0;
  std::vector<int64_t> sent(schedule_.ranks(), 0);
  for (int rank = 0; rank < schedule_.ranks(); ++rank) {
    if (next_ >= schedule_.rounds(rank)) continue;
    schedule_.Round(rank, next_, transfers);
    int64_t received = 0, added = 0;
    for (const Transfer& transfer : transfers) {
      if (transfer.kind == TransferKind::kSend) {
        sent[rank] += transfer.chunk_count;
        continue;
      }
      const bool adds = transfer.kind == TransferKind::kReceiveAdd;
      for (int chunk = transfer.first_chunk; chunk < transfer.first_chunk + transfer.chunk_count; ++chunk) {
        uint64_t& held = holdings_[rank][chunk];
        held = (adds ? held : 0) | before[transfer.peer][chunk];
      }
      if (adds) added += transfer.chunk_count;
      if (transfer.peer != rank) {
        received += transfer.chunk_count;
        hops.push_back({transfer.peer, rank, transfer.first_chunk, transfer.chunk_count, adds});
      }
    }
    traffic_.received[rank] += received;
    busiest = std::max(busiest, received);
    most_added = std::max(most_added, added);
  }
  for (int rank = 0; rank < schedule_.ranks(); ++rank) {
    traffic_.sent[rank] += sent[rank];
    busiest = std::max(busiest, sent[rank]);
  }
  if (!hops.empty()) ++traffic_.rounds;
  traffic_.busiest_link += busiest;
  traffic_.most_added += most_added;
  ++next_;
  return hops;
}

uint64_t Playback::Everyone() const { return ~uint64_t{0} >> (64 - schedule_.ranks()); }

bool Playback::Fulfilled() const {
  for (int rank = 0; rank < schedule_.ranks(); ++rank) {
    for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
      const uint64_t held = holdings_[rank][chunk];
      switch (collective_) {
        case Collective::kAllReduce:
          if (held != Everyone()) return false;
          break;
        case Collective::kReduceScatter:
          if (chunk == rank && held != Everyone()) return false;
          break;
        case Collective::kAllGather:
          if (held != uint64_t{1} << chunk) return false;
          break;
        case Collective::kBroadcast:
          if (held != uint64_t{1} << root_) return false;
          break;
        case Collective::kAllToAll: {
          const int ranks = schedule_.ranks();
          if (held != uint64_t{1} << (rank - chunk + ranks) % ranks) return false;
          break;
        }
      }
    }
  }
  return true;
}

int64_t UnitsOf(StepKind kind) {
  switch (kind) {
    case StepKind::kForward:
    case StepKind::kBackwardInput:
    case StepKind::kBackwardWeight:
      return 1;
    case StepKind::kBackward:
      return 2;
    default:
      return 0;
  }
}

absl::StatusOr<PlayedProgram> PlayProgram(const NamedProgram& named, int ranks, int micro_batches) {
  PSRING_ASSIGN_OR_RETURN(const StepProgram compute, MakeStepProgram(named, ranks, micro_batches));
  PSRING_ASSIGN_OR_RETURN(StepProgram program,
                          LowerProgram(compute, ModelCut::WholeStages(compute.stages())));
  GivenDurations units([](int, const StepAction& action) { return UnitsOf(action.kind); });
  PSRING_ASSIGN_OR_RETURN(Walk walk, WalkProgram(program, &units));
  return PlayedProgram{.program = std::move(program), .walk = std::move(walk)};
}

int64_t PlayedProgram::computing(int rank) const {
  int64_t units = 0;
  for (const StepNode& node : walk.nodes[rank]) units += UnitsOf(node.action.kind);
  return units;
}

int PlayedProgram::in_flight(int rank) const {
  int count = 0;
  for (int stage = 0; stage < program.stages(); ++stage) {
    if (program.rank_of[stage] == rank) count += walk.peak_live[stage];
  }
  return count;
}

}  // namespace psring
