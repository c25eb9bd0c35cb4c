// A collective is a schedule, and a schedule is data: what every rank sends, receives and adds, round by
// round, over equal chunks of one buffer. It is computed on demand and never stored whole.
//
// *rank*: a process's number, 0 to ranks - 1. *chunk*: a slice of the buffer; chunk c of C holds elements
// [c n / C, (c + 1) n / C) rounded down (see ChunkBounds). *round*: transfers that are in flight together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// What a schedule is for: what every rank's chunks hold before and after it.
//   all-reduce      each rank its own values -> the sum over all ranks, everywhere
//   reduce-scatter  each rank its own values -> rank r holds the sum in chunk r; its other chunks may hold
//                   anything. chunks() == ranks()
//   all-gather      rank r its values in chunk r -> all chunks everywhere. chunks() == ranks()
//   broadcast       the root's values -> everywhere
enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast };
const char* Name(Collective collective);  // "all_reduce", as nccl-tests has it
absl::StatusOr<Collective> ParseCollective(const std::string& name);

enum class Action : uint8_t { kSend, kReceive, kReceiveAdd };

struct Transfer {
  Action action;
  int peer;  // another rank; in a kReceiveAdd also the rank itself: see Round
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
  // Sends read what stood there before the round. Receives into one chunk name the same chunks and apply in
  // the order listed: a kReceive comes first and replaces what stood there, a kReceiveAdd adds; from the rank
  // itself it adds what stood there before the round, and has no send. A transport may fuse them into one
  // pass. Between two ranks the k-th send of a round meets the k-th receive of the peer's round with the same
  // number.
  virtual void Round(int rank, int round, std::vector<Transfer>& transfers) const = 0;

  // True where some rank receives into a chunk in the round in which it also sends it: what is sent is then
  // copied away first. Schedules for large buffers avoid it.
  virtual bool copies_sends() const { return false; }

  // Ranks of one class do the same up to renaming: what lets a simulator go to 65,536 ranks.
  virtual int symmetry_class(int rank) const { return rank; }
};

// Elements of chunk `chunk` of `chunks` in a buffer of `count`: {first, length}. Lengths differ by at most
// one.
struct ChunkRange {
  size_t first, length;
};
ChunkRange ChunkBounds(size_t count, int chunks, int first_chunk, int chunk_count = 1);

// For how many ranks, and where they stand.
struct ScheduleShape {
  int ranks = 1;
  int ranks_per_node = 1;  // hierarchical: rank r stands on node r / ranks_per_node; divides `ranks`
  int root = 0;            // broadcast
};

struct ScheduleRow {
  const char* name;
  const char* summary;
  // Null where the algorithm does not offer the collective.
  std::unique_ptr<Schedule> (*make)(Collective collective, const ScheduleShape& shape);
};
// Every algorithm, one row each; --help, the checker's tests and the benchmark read this table.
const std::vector<ScheduleRow>& ScheduleRows();
std::vector<std::string> AlgorithmsFor(Collective collective);

// NotFound: an unknown name; lists those there are. InvalidArgument: the algorithm does not offer the
// collective (lists those that do), or the shape is none.
absl::StatusOr<std::unique_ptr<Schedule>> MakeSchedule(const std::string& algorithm, Collective collective,
                                                       const ScheduleShape& shape);

}  // namespace psring
