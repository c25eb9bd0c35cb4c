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
#include "ring_worker/schedules/cost.h"

namespace psring {

// What a schedule is for: what every rank's chunks hold before and after it.
//   all-reduce      each rank its own values -> the sum over all ranks, everywhere with the same bits
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

// What CheckSchedule (schedule_check.h) proves of every algorithm here. Immutable; thread-safe.
class Schedule {
 public:
  virtual ~Schedule() = default;

  virtual std::string name() const = 0;  // the algorithm's: "ring"
  virtual int ranks() const = 0;
  virtual int chunks() const = 0;
  // A rank goes through rounds 0 to rounds(rank) - 1 in order; in some it may have nothing to do.
  virtual int rounds(int rank) const = 0;

  // Replaces `transfers` with rank's transfers in `round`. All transfers of a round are in flight together:
  // none waits for another of its round.
  //
  // Meetings: the k-th send from rank a to rank b meets b's k-th receive from a in the round of the same
  // number, and both name the same chunks. A kReceiveAdd from the rank itself has no send.
  //
  // Values: what is sent is what stood there before the round. Receives into one chunk all name the same
  // chunks, and give it a value in the order listed: it begins with what stood there before the round, or,
  // where the first is a kReceive (no other may be), with what that one brings; each kReceiveAdd then adds
  // what it brings, the one from the rank itself what stood there before the round. A transport may do them
  // in one pass (see cpu::Reduce, which takes the rank's own memory as a source wherever it stands in the
  // list).
  virtual void Round(int rank, int round, std::vector<Transfer>& transfers) const = 0;

  // True where some rank receives into a chunk in the round in which it also sends it: what is sent must then
  // be copied away first, or all of the round's receivers must have read before any of them writes. Otherwise
  // a receive may be written to its place as it comes. Schedules for large buffers avoid it.
  virtual bool copies_sends() const { return false; }

  // Ranks of one class do the same at the same time up to renaming of ranks and chunks: what lets a simulator
  // go to 65,536 ranks. A class of its own is always right.
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
  // Of an all-reduce; terms are for at least two ranks. Null: no closed form, so theory leaves the schedule
  // out.
  ScheduleCost (*cost)(int ranks, double bytes) = nullptr;
  const char* summary_chinese = "";
};
using ScheduleTable = std::vector<ScheduleRow>;

// Every algorithm, one row each. Process groups, simulator, theory, report, explain, --help, benchmark and
// tests read this table; functions with a `rows` parameter accept another one.
const ScheduleTable& ScheduleRows();
std::vector<std::string> AlgorithmsFor(Collective collective, const ScheduleTable& rows = ScheduleRows());
// Null if there is none of this name.
const ScheduleRow* FindSchedule(const std::string& algorithm, const ScheduleTable& rows = ScheduleRows());

// NotFound: an unknown name; lists those there are. InvalidArgument: the algorithm does not offer the
// collective (lists those that do), or the shape is none.
absl::StatusOr<std::unique_ptr<Schedule>> MakeSchedule(const std::string& algorithm, Collective collective,
                                                       const ScheduleShape& shape,
                                                       const ScheduleTable& rows = ScheduleRows());

}  // namespace psring
