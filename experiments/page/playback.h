// Runs a schedule symbolically, one round at a time, and a program in units of time, for `psring explain` and
// the report. Pure.
//
// *holding*: the set of ranks whose values a rank's chunk contains.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ring_worker/schedules/schedule.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/walk_program.h"

namespace psring {

inline constexpr int kMaxPlayed = 64;  // ranks: a holding has one bit per rank

// A transfer between two ranks.
struct Hop {
  int from, to, first_chunk, chunk_count;
  bool adds;  // false: replaces
  bool operator==(const Hop&) const = default;
};

// Traffic of the rounds so far, in chunks.
struct PlayedTraffic {
  std::vector<int64_t> sent, received;       // by rank
  int64_t rounds = 0;                        // rounds with transfers, i.e. messages in sequence
  int64_t busiest_link = 0, most_added = 0;  // sum over rounds of the busiest rank's
};

class Playback {
 public:
  // `schedule` must outlive this, have at most kMaxPlayed ranks, and pass CheckSchedule.
  Playback(const Schedule& schedule, Collective collective, int root = 0);

  int rounds() const { return rounds_; }  // maximum over ranks
  int next_round() const { return next_; }
  bool done() const { return next_ == rounds_; }

  // Plays the next round and returns its hops by receiver. Requires !done().
  std::vector<Hop> Step();

  // Bit r is set if the chunk contains rank r's values.
  uint64_t Holding(int rank, int chunk) const { return holdings_[rank][chunk]; }
  uint64_t Everyone() const;
  const PlayedTraffic& traffic() const { return traffic_; }

  // True if every rank has the collective's result.
  bool Fulfilled() const;

 private:
  const Schedule& schedule_;
  const Collective collective_;
  const int root_;
  int rounds_ = 0, next_ = 0;
  std::vector<std::vector<uint64_t>> holdings_;  // [rank][chunk]
  PlayedTraffic traffic_;
};

// A step of a program on stages that take equal time. The walk's nanoseconds are units: that of a forward
// pass of a stage. A backward pass takes two, one for each gradient, and messages take none.
struct PlayedProgram {
  StepProgram program;
  Walk walk;

  int64_t computing(int rank) const;  // units
  int in_flight(int rank) const;      // micro-batches of all of its stages at a time, at most
};

int64_t UnitsOf(StepKind kind);

// Errors: those of MakeStepProgram.
absl::StatusOr<PlayedProgram> PlayProgram(const NamedProgram& named, int ranks, int micro_batches);

}  // namespace psring
