// A collective is a schedule, and a schedule is data: what every rank sends, receives and adds, round by
// round, over equal chunks of one buffer. It is computed on demand and never stored whole.
//
// *rank*: a process's number, 0 to ranks - 1. *chunk*: a slice of the buffer; chunk c of C holds elements
// [c n / C, (c + 1) n / C) rounded down (see ChunkBounds). *round*: transfers that are in flight together.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

enum class Action { kSend, kReceive, kReceiveAdd };

struct Transfer {
  Action action;
  int peer;
  int first_chunk;
  int chunk_count;  // consecutive chunks; no wrap-around
  bool operator==(const Transfer&) const = default;
};

// Immutable; thread-safe.
class Schedule {
 public:
  virtual ~Schedule() = default;

  virtual std::string name() const = 0;
  virtual int ranks() const = 0;
  virtual int chunks() const = 0;
  virtual int rounds(int rank) const = 0;

  // Replaces `transfers` with rank's transfers in `round`. All transfers of a round are in flight together.
  // Sends read what stood there before the round; several kReceiveAdd into one chunk apply in the order
  // listed, and a transport may fuse them into one pass. Between two ranks the k-th send of a round meets the
  // k-th receive of the peer's round with the same number.
  virtual void Round(int rank, int round, std::vector<Transfer>& transfers) const = 0;

  // Ranks of one class do the same up to renaming: what lets a simulator go to 65,536 ranks.
  virtual int symmetry_class(int rank) const { return rank; }
};

// Elements of chunk `chunk` of `chunks` in a buffer of `count`: {first, length}. Lengths differ by at most
// one.
struct ChunkRange {
  size_t first, length;
};
ChunkRange ChunkBounds(size_t count, int chunks, int first_chunk, int chunk_count = 1);

// All-reduce of `ranks` ranks.
//   ring  scatter-reduce, then all-gather: 2(N-1) rounds, each moves 1/N of the buffer (Patarasuk & Yuan
//   2009) star  the parameter-server pattern: rank 0 gathers, adds, hands back: 2 rounds
std::unique_ptr<Schedule> RingAllReduce(int ranks);
std::unique_ptr<Schedule> StarAllReduce(int ranks);
// Rank `root`'s buffer to all: a pipeline would be faster for long buffers; used once, at the start of
// training.
std::unique_ptr<Schedule> StarBroadcast(int ranks, int root);

struct ScheduleRow {
  const char* name;
  const char* summary;
  std::unique_ptr<Schedule> (*make)(int ranks);
};
const std::vector<ScheduleRow>& AllReduceSchedules();

// NotFound lists the names there are.
absl::StatusOr<std::unique_ptr<Schedule>> MakeAllReduceSchedule(const std::string& name, int ranks);

}  // namespace psring
